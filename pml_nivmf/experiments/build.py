"""From a configuration to the objects of a training run; nothing is trained here."""

from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from pytorch_metric_learning.testers import GlobalEmbeddingSpaceTester
from torch import nn

from ..data import DataSplits, with_closed_set
from ..metrics import ProbabilisticAccuracyCalculator, lower_is_better
from ..models import EmbeddingHead, freeze_batch_norm
from . import data_parallel, mixed_precision, optimization, registry
from .config import Composed, located
from .dataset_cache import kept_or_built
from .distributed import device_of_rank, first_here, seed_everything
from .errors import ConfigError, nearest
from .fit import check_trunk, check_type
from .tester import SharingTester

_OBJECT_KINDS = {
    "dataset": "dataset",
    "model.trunk": "trunk",
    "loss": "loss",
    "miner": "miner",
    "sampler": "sampler",
    "optimizers.model": "optimizer",
    "schedule.scheduler": "scheduler",
}
_OPTIONAL = ("miner", "sampler", "schedule.scheduler")


@dataclass
class Parts:
    """Everything a run needs, built and on its device."""

    data: DataSplits
    trunk: nn.Module
    embedder: nn.Module
    loss: nn.Module
    miner: Any
    sampler: Any
    optimizers: dict[str, torch.optim.Optimizer]
    schedulers: dict[str, Any]
    clippers: dict[str, Any]
    testers: dict[str, GlobalEmbeddingSpaceTester]  # of the splits validation and test
    device: torch.device
    scaler: torch.amp.GradScaler | None = None  # of float16 gradients


def build_parts(config: DictConfig) -> Parts:
    """Build in an order fixed for good, because each part draws from the seeded generators."""
    settings = _plain(config)
    data_parallel.check_batch_size(settings["general"]["batch_size"])
    device = device_of_rank(pick_device(settings["general"]["device"]))
    seed_everything(settings["general"]["seed"])
    data = _build_data(settings)
    trunk = _build_trunk(settings["model"], data, device)
    size = settings["model"]["embedding_size"]
    embedder = EmbeddingHead(trunk.num_features, size)
    loss = _one("loss", settings["loss"], "loss", num_classes=data.num_classes, embedding_size=size)
    for module in (trunk, embedder, loss):
        module.to(device)
    mixed_precision.use(settings["general"]["amp"], trunk, embedder)
    optimizers = optimization.build_optimizers(settings["optimizers"], trunk, embedder, loss)
    return Parts(
        data=data,
        trunk=trunk,
        embedder=embedder,
        loss=loss,
        miner=_one("miner", settings["miner"], "miner") if settings["miner"] else None,
        sampler=_build_sampler(settings, data),
        optimizers=optimizers,
        schedulers=optimization.build_schedulers(settings["schedule"]["scheduler"], optimizers),
        clippers=optimization.build_clippers(settings["optimizers"]["clip_norm"], trunk, embedder, loss),
        testers=_build_testers(settings, device),
        device=device,
        scaler=mixed_precision.scaler_for(settings["general"]["amp"], device),
    )


def check_objects(composed: Composed) -> None:
    """Refuse unknown classes and arguments of all objects, with the file that names them; builds nothing."""
    settings = _plain(composed.config)
    for path, kind in _OBJECT_KINDS.items():
        group, _, name = path.partition(".")
        config = settings[group][name] if name else settings[group]
        try:
            if config or path not in _OPTIONAL:
                registry.check(kind, config, path)
        except ConfigError as error:
            raise located(error, composed.sources) from None
    try:
        for key in ("metrics", "test_metrics"):
            _check_metrics(settings["evaluation"][key], f"evaluation.{key}")
        _check_selection(settings["evaluation"])
    except ConfigError as error:
        raise located(error, composed.sources) from None


def _check_metrics(names: list[str], key: str) -> None:
    for name in names:
        try:
            ProbabilisticAccuracyCalculator(include=(name,))  # some names hold a number, as recall_at_5 does
        except ValueError:
            known = ProbabilisticAccuracyCalculator().original_function_dict
            raise ConfigError(f"{key}: unknown metric {name!r}{nearest(name, list(known))}", key=key) from None


def _check_selection(evaluation: dict[str, Any]) -> None:
    select = evaluation["select"]
    computed = _build_calculator(evaluation, evaluation["metrics"], torch.device("cpu")).get_curr_metrics()
    if select not in computed:
        message = f"evaluation.select: {select!r} is not computed{nearest(select, computed)}"
        raise ConfigError(message, key="evaluation.select")
    if lower_is_better(select):
        message = f"evaluation.select: the highest score is chosen, but of {select!r} less is better"
        raise ConfigError(message, key="evaluation.select")


def pick_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        message = f"general.device: {name!r} is no torch device; use auto, cpu, cuda or cuda:N"
        raise ConfigError(message, key="general.device") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        message = "general.device: cuda was asked for, but torch sees no GPU; use auto or cpu"
        raise ConfigError(message, key="general.device")
    if device.type in ("cpu", "cuda"):
        return device
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, NotImplementedError) as error:  # torch knows many, few machines have them
        reason = str(error).splitlines()[0]
        message = f"general.device: torch cannot compute on {name!r} here ({reason}); use auto or cpu"
        raise ConfigError(message, key="general.device") from error
    return device


def _plain(config: DictConfig) -> dict[str, Any]:
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    return plain  # type: ignore[return-value]


def _one(kind: str, config: dict[str, Any], path: str, **injected: Any) -> Any:
    return check_type(kind, registry.build(kind, config, path, **injected), path)


def _build_data(settings: dict[str, Any]) -> DataSplits:
    """The closed set is the same for every loss and every seed."""
    config, key = settings["dataset"], "evaluation.closed_set_share"
    data = first_here(lambda: kept_or_built(config, lambda: _one("dataset", config, "dataset")))
    share = settings["evaluation"]["closed_set_share"]
    try:
        return with_closed_set(data, share) if share else data
    except ValueError as error:
        raise ConfigError(f"{key}: {error}", key=key) from error


def _build_trunk(settings: dict[str, Any], data: DataSplits, device: torch.device) -> Any:
    shape = data.input_shape
    trunk = _one("trunk", settings["trunk"], "model.trunk", in_channels=shape[0], num_features=shape[-1])
    check_trunk(trunk, next(iter(settings["trunk"])), shape)
    if settings["freeze_batch_norm"]:
        freeze_batch_norm(trunk)
        return trunk
    return data_parallel.synchronised(trunk, device)


def _build_sampler(settings: dict[str, Any], data: DataSplits) -> Any:
    batch_size = settings["general"]["batch_size"]
    if not settings["sampler"]:
        if batch_size > len(data.train):
            message = f"general.batch_size: {batch_size} is more than the {len(data.train)} training items"
            raise ConfigError(message, key="general.batch_size")
        return None
    length = max(len(data.train), batch_size)
    try:
        return registry.build(
            "sampler",
            settings["sampler"],
            "sampler",
            labels=data.train.labels,
            batch_size=batch_size,
            length_before_new_iter=length,
        )
    except ConfigError as error:  # PML's assertions name no numbers
        numbers = f"general.batch_size is {batch_size}, and there are {data.num_classes} training classes"
        raise ConfigError(f"{error} ({numbers})", key=error.key) from error


def _build_testers(settings: dict[str, Any], device: torch.device) -> dict[str, GlobalEmbeddingSpaceTester]:
    """Validation, every epoch, looks at the metrics that show progress; the test, once, at all."""
    _check_selection(settings["evaluation"])
    metrics, more = settings["evaluation"]["metrics"], settings["evaluation"]["test_metrics"]
    return {
        "validation": _build_tester(settings, metrics, device),
        "test": _build_tester(settings, list(dict.fromkeys([*metrics, *more])), device),
    }


def _build_tester(settings: dict[str, Any], metrics: list[str], device: torch.device) -> GlobalEmbeddingSpaceTester:
    return SharingTester(
        normalize_embeddings=False,  # norms are data; the calculator retrieves by cosine itself
        batch_size=settings["evaluation"]["batch_size"],
        dataloader_num_workers=settings["general"]["num_workers"],
        data_device=device,
        accuracy_calculator=_build_calculator(settings["evaluation"], metrics, device),
        end_of_testing_hook=lambda tester: None,
    )


def _build_calculator(
    evaluation: dict[str, Any], metrics: list[str], device: torch.device
) -> ProbabilisticAccuracyCalculator:
    try:
        return ProbabilisticAccuracyCalculator(
            include=(*metrics, *(f"recall_at_{k}" for k in evaluation["recall_at"])),
            recall_at=tuple(evaluation["recall_at"]),
            retrieval=evaluation["retrieval"],
            device=device,
        )
    except ValueError as error:
        raise ConfigError(f"evaluation: {error}", key="evaluation") from error
