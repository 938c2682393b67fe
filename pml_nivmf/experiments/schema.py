"""The shape of an experiment's configuration: one dataclass per group, with types, defaults and checks.

A field that holds an object is a mapping `{ClassName: {keyword: value}}`; `registry` knows the class names.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from ..checks import check_option, check_range

ObjectConfig = dict[str, Any]


class ConfigError(ValueError):
    """A configuration that cannot be run."""


def _limited(default: Any, check: Callable[..., Any] = check_range, **limits: Any) -> Any:
    """A field whose value `config` checks, unless it is None."""
    return field(default=default, metadata={"check": lambda key, value: value is None or check(key, value, **limits)})


@dataclass
class ModelConfig:
    trunk: ObjectConfig = field(default_factory=dict)  # {ConvNet: {…}}, {TimmTrunk: {…}}, {Identity: {}}, …
    embedding_size: int = _limited(128, at_least=2)
    head_scale: float = _limited(1.0)  # factor of the head's initial weights; the paper's losses start with large norms
    freeze_batch_norm: bool = False  # keep the loaded statistics, as in the paper
    fit_norms: bool = False  # after training, EmbeddingHead.fit_norms with training images and crops of them
    # Store every image and this many random views of it, or outputs of TimmTrunk's frozen part for them (frozen_until).
    cached_views: int | None = _limited(None)
    cache_dir: str = "runs/cached_maps"


@dataclass
class OptimizersConfig:
    model: ObjectConfig = field(default_factory=dict)  # for trunk, head and, with the rates below, the loss
    embedder_lr: float | None = _limited(None)  # None: the model's
    proxy_lr: float | None = _limited(None)  # None: see ProxyLoss.param_groups; PML's: 100 × the model's
    concentration_lr: float | None = _limited(None)
    temperature_lr: float | None = _limited(None)
    loss_weight_decay: float = _limited(0.0)  # of proxies and other parameters of a loss, instead of the model's
    clip_norm: float | None = _limited(None)  # largest gradient norm of trunk, head and loss, each


@dataclass
class ScheduleConfig:
    scheduler: ObjectConfig = field(default_factory=dict)  # stepped once per epoch, on every optimizer; {}: none
    warm_start: bool = True  # start class proxies at class means, ours and PML's alike
    patience: int | None = _limited(None, at_least=1)  # evaluations with a worse score; None: no limit


@dataclass
class EvaluationConfig:
    metrics: list[str] = field(default_factory=list)  # names of PML's AccuracyCalculator metrics
    recall_at: list[int] = field(default_factory=list)
    test_metrics: list[str] = field(default_factory=list)  # computed once, on the test set, in addition
    retrieval: str = "cosine"  # or "l2", on raw embeddings
    select: str = "mean_average_precision_at_r"  # metric that chooses the epoch to test, on the classes of `select_on`
    # test: as in the paper. last: the last epoch. Both train on all classes, unless validation_share is set.
    select_on: str = _limited("validation", check_option, options=("validation", "test", "last"))
    every: int = _limited(1, at_least=1)  # epochs
    batch_size: int = _limited(256, at_least=1)
    degradation: bool | None = None  # certainty of degraded test images; None: unless a CPU runs a large trunk
    gallery_shots: list[int] = field(default_factory=list)  # images per class of galleries of test classes, to measure


@dataclass
class GeneralConfig:
    epochs: int = _limited(10, at_least=1)
    seed: int = _limited(0)
    batch_size: int = _limited(64, at_least=1)
    run_dir: str | None = None  # None: runs/EXPERIMENT/LOSS/seed-N
    device: str = "auto"  # cuda if there is one, else cpu
    amp: str = _limited("off", check_option, options=("off", "bfloat16", "float16"))  # precision of trunk and head
    num_workers: int = _limited(0)
    threads: int | None = _limited(None, at_least=1)  # CPU threads; None: torch's choice


@dataclass
class ExperimentConfig:
    """All groups. `dataset`, `loss`, `miner` and `sampler` are objects themselves.

    `dataset` may have two keys beside the class: `splits: 4` divides the training classes into four splits, and the run
    holds out `split: 0` (or 1, 2, 3) for validation; `compare` runs each of them, see `data.class_split`.
    """

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
SETTINGS = {  # dotted key -> check of its value
    f"{group.name}.{setting.name}": setting.metadata.get("check", lambda key, value: None)
    for group in fields(ExperimentConfig)
    for setting in (fields(group.type) if is_dataclass(group.type) else ())
}
