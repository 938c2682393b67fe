"""The shape of an experiment's configuration: one dataclass per group, with defaults.

A field that holds an object is a mapping `{ClassName: {keyword: value}}`; the registry knows the names.
"""

from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

ObjectConfig = dict[str, Any]


@dataclass
class ModelConfig:
    trunk: ObjectConfig = field(default_factory=dict)  # {ConvNet: {…}}, {TimmTrunk: {…}}, {Identity: {}}, …
    embedding_size: int = 128
    freeze_batch_norm: bool = False  # statistics stay as loaded, as in the paper


@dataclass
class OptimizersConfig:
    model: ObjectConfig = field(default_factory=dict)  # for trunk, head and, with the rates below, the loss
    embedder_lr: float | None = None  # None: the model's
    proxy_lr: float | None = None  # None: the loss's rule, see ProxyLoss.param_groups; PML's losses: 100 × the model's
    concentration_lr: float | None = None
    temperature_lr: float | None = None
    clip_norm: float | None = None  # largest gradient norm of trunk, head and loss, each


@dataclass
class ScheduleConfig:
    scheduler: ObjectConfig = field(default_factory=dict)  # stepped once an epoch, on every optimizer; {}: none
    warm_start: bool = True  # class proxies start at class means, ours and PML's alike
    patience: int | None = None  # stop after this many evaluations without a better validation score


@dataclass
class EvaluationConfig:
    metrics: list[str] = field(default_factory=list)  # names of PML's AccuracyCalculator metrics
    recall_at: list[int] = field(default_factory=list)
    test_metrics: list[str] = field(default_factory=list)  # computed once, on the test set, beside the others
    retrieval: str = "cosine"  # or "l2", on raw embeddings
    select: str = "mean_average_precision_at_r"  # validation metric that chooses the epoch to test
    every: int = 1  # epochs
    batch_size: int = 256
    closed_set_share: float = 0.0  # of every training class's images, kept out of training to measure calibration


@dataclass
class GeneralConfig:
    epochs: int = 10
    seed: int = 0
    batch_size: int = 64
    run_dir: str | None = None  # None: runs/EXPERIMENT/LOSS/seed-N
    device: str = "auto"  # cuda if there is one, else cpu
    amp: str = "off"  # or bfloat16, float16: what trunk and head multiply in; the rest stays in float32
    num_workers: int = 0
    threads: int | None = None  # CPU threads; None: torch's choice


@dataclass
class ExperimentConfig:
    """All groups. `dataset`, `loss`, `miner` and `sampler` are objects themselves."""

    dataset: ObjectConfig = field(default_factory=dict)
    model: ModelConfig = field(default_factory=ModelConfig)
    loss: ObjectConfig = field(default_factory=dict)
    miner: ObjectConfig = field(default_factory=dict)
    sampler: ObjectConfig = field(default_factory=dict)
    optimizers: OptimizersConfig = field(default_factory=OptimizersConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    general: GeneralConfig = field(default_factory=GeneralConfig)


GROUPS = tuple(group.name for group in fields(ExperimentConfig))
# dotted paths of fields that hold one object: another class name there replaces, the same one merges
OBJECT_PATHS = tuple(
    path
    for group in fields(ExperimentConfig)
    for path in (
        [f"{group.name}.{f.name}" for f in fields(group.type) if f.type is ObjectConfig]
        if is_dataclass(group.type)
        else [group.name]
    )
)
