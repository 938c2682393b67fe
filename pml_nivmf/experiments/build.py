"""From a configuration to the objects of a run; nothing is trained here."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from pytorch_metric_learning.losses import MultipleLosses
from torch import Tensor, nn

from ..data import DataSplits, DegradedItems, class_split
from ..data.degraded import CROP
from ..metrics import ProbabilisticAccuracyCalculator
from ..models import EmbeddingHead
from . import cached_maps, registry
from .config import Composed, ConfigError
from .distributed import check_batch_size, device_of_rank, seed_everything, synchronised
from .evaluate import build_calculators, check_metrics

_REQUIRED = {"dataset": "dataset", "model.trunk": "trunk", "loss": "loss", "optimizers.model": "optimizer"}
_OPTIONAL = {"miner": "miner", "sampler": "sampler", "schedule.scheduler": "scheduler"}
# PML's proxy losses have no rule of their own: their proxies learn this much faster than the model, as ours do.
_PML_PROXY_RATE = 100.0


@dataclass
class Parts:
    """Everything a run needs, built and on its device."""

    config: DictConfig
    data: DataSplits
    trunk: nn.Module
    embedder: nn.Module
    loss: nn.Module
    miner: Any
    sampler: Any
    optimizers: dict[str, torch.optim.Optimizer]
    schedulers: dict[str, Any]
    calculators: dict[str, ProbabilisticAccuracyCalculator]  # of the splits validation and test
    device: torch.device
    scaler: torch.amp.GradScaler  # for float16 gradients, which underflow otherwise; passes others through

    def modules(self) -> dict[str, nn.Module]:
        return {"trunk": self.trunk, "embedder": self.embedder, "loss": self.loss}

    def autocast(self) -> torch.autocast:
        """Return a context in which trunk and head multiply in 16 bits; weights, embeddings and losses stay in 32."""
        amp = self.config.general.amp
        return torch.autocast(self.device.type, getattr(torch, amp, None), enabled=amp != "off")

    def embed(self, inputs: Tensor) -> Tensor:
        """Return raw embeddings (n, M) in float32, as the loss sees them."""
        with self.autocast():
            embeddings: Tensor = self.embedder(self.trunk(inputs.to(self.device)))
        return embeddings.float()

    def embedding_scale(self) -> float:
        """Return the factor by which the loss multiplies embeddings before they are concentrations, or 1."""
        loss = getattr(self.loss, "probabilistic", None)
        return 1.0 if loss is None else float(loss.embedding_scale)


def build_parts(config: DictConfig) -> Parts:
    """Build all parts, always in the same order: each may draw from the seeded generators."""
    settings = _plain(config)
    general, size = settings["general"], settings["model"]["embedding_size"]
    check_batch_size(general["batch_size"])
    check_metrics(settings["evaluation"])
    device = device_of_rank(pick_device(general["device"]))
    seed_everything(general["seed"])
    data = _build_data(settings)
    trunk = _build_trunk(settings["model"], data, device).to(device)
    if settings["model"]["cached_views"] is not None:
        data = cached_maps.with_maps(data, trunk, settings)
    embedder = EmbeddingHead(trunk.num_features, size)
    embedder.weight.data *= settings["model"]["head_scale"]
    loss = registry.build("loss", settings["loss"], "loss", num_classes=data.num_classes, embedding_size=size)
    modules = {"trunk": trunk, "embedder": embedder, "loss": loss}
    for module in modules.values():
        module.to(device)
    optimizers = _build_optimizers(settings["optimizers"], modules)
    return Parts(
        config=config,
        data=data,
        **modules,
        miner=registry.build("miner", settings["miner"], "miner") if settings["miner"] else None,
        sampler=_build_sampler(settings, data),
        optimizers=optimizers,
        schedulers=_build_schedulers(settings, optimizers),
        calculators=build_calculators(settings["evaluation"], device),
        device=device,
        scaler=torch.amp.GradScaler(device.type, enabled=general["amp"] == "float16"),
    )


def _plain(config: Any) -> Any:
    return OmegaConf.to_container(config, resolve=True) if OmegaConf.is_config(config) else config


def check_objects(composed: Composed) -> None:
    """Raise a ConfigError for unknown classes, arguments and metrics; build nothing."""
    for path, kind in (_REQUIRED | _OPTIONAL).items():
        config = OmegaConf.select(composed.config, path)
        if config or path in _REQUIRED:
            registry.check(kind, _plain(config), path)
    check_metrics(_plain(composed.config.evaluation))
    for key in composed.searches:
        raise ConfigError(f"{key} is searched: choose a value, or use `pml-nivmf sweep`")


def pick_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, NotImplementedError, AssertionError) as error:
        reason, remedy = str(error).splitlines()[0], "use auto, cpu, cuda or cuda:N"
        raise ConfigError(f"general.device: torch cannot use {name!r} here ({reason}); {remedy}") from error
    return torch.device(name)


def _build_data(settings: dict[str, Any]) -> DataSplits:
    """The classes kept out of training are the same for every loss and seed."""
    dataset, on_validation = settings["dataset"], settings["evaluation"]["select_on"] == "validation"
    all_classes = {"validation_share": 0} if "splits" in dataset or not on_validation else {}
    data = registry.build("dataset", dataset, "dataset", **all_classes)
    if "splits" in dataset:
        data = class_split(data, dataset.get("split"), dataset["splits"])
    if on_validation and len(data.validation) == 0:
        remedy = "set validation_share, or select_on to last or, as in the paper, to test"
        raise ConfigError(f"evaluation.select_on: there are no validation classes: {remedy}")
    if settings["model"]["fit_norms"] and data.train_degraded is None:
        if len(data.input_shape) != 3 or data.input_shape[0] not in (1, 3):
            raise ConfigError("model.fit_norms needs images, or degraded training items: x_train_degraded in the .npz")
        data = replace(data, train_degraded=DegradedItems(data.train_plain, "crop", CROP))
    return data


def compute_maps(config: DictConfig) -> None:
    """Compute and store the maps of `model.cached_views`, with a progress bar, before processes need them."""
    if config.model.cached_views is not None and not cached_maps.path_of(_plain(config)).exists():
        build_parts(config)


def _build_trunk(settings: dict[str, Any], data: DataSplits, device: torch.device) -> Any:
    shape = data.input_shape
    trunk = registry.build("trunk", settings["trunk"], "model.trunk", in_channels=shape[0], num_features=shape[-1])
    check_trunk(trunk, next(iter(settings["trunk"])), shape)
    return trunk if settings["freeze_batch_norm"] else synchronised(trunk, device)


def check_trunk(trunk: nn.Module, name: str, shape: tuple[int, ...]) -> None:
    """Refuse a trunk that cannot take items of such a shape."""
    try:
        with torch.no_grad():
            trunk.eval()(torch.zeros(1, *shape))
    except Exception as error:  # whatever a user's forward raises
        hint = " (for feature vectors use model=features)" if len(shape) == 1 else ""
        raise ConfigError(f"model.trunk: {name} cannot take items of shape {shape}{hint}: {error}") from error
    trunk.train()


def _build_sampler(settings: dict[str, Any], data: DataSplits) -> Any:
    batch_size, items = settings["general"]["batch_size"], len(data.train)
    if not settings["sampler"]:
        if batch_size > items:
            raise ConfigError(f"general.batch_size: {batch_size} is more than the {items} training items")
        return None
    options = {"labels": data.train.labels, "batch_size": batch_size, "length_before_new_iter": max(items, batch_size)}
    try:
        return registry.build("sampler", settings["sampler"], "sampler", **options)
    except ConfigError as error:  # PML's assertions contain no numbers
        numbers = f"general.batch_size is {batch_size}, and there are {data.num_classes} training classes"
        raise ConfigError(f"{error} ({numbers})") from error


# Optimizers: separate rates for trunk, head, proxies, concentrations and temperature ------------------------------


def _build_optimizers(settings: dict[str, Any], modules: dict[str, nn.Module]) -> dict[str, torch.optim.Optimizer]:
    """Return one optimizer of the same class for each module, under the names that PML's trainer expects."""
    model = settings["model"]
    registry.check("optimizer", model, "optimizers.model")
    (name, arguments), *_ = model.items()
    lr = (arguments or {}).get("lr")
    if lr is None:
        raise ConfigError(f"optimizers.model.{name}: lr is missing; the other rates follow from it")
    embedder_lr = lr if settings["embedder_lr"] is None else settings["embedder_lr"]
    groups = {
        "trunk_optimizer": [{"params": list(modules["trunk"].parameters())}],
        "embedder_optimizer": [{"params": list(modules["embedder"].parameters()), "lr": embedder_lr}],
        "metric_loss_optimizer": _loss_groups(settings, modules["loss"], lr),
    }
    return {
        key: registry.build("optimizer", model, "optimizers.model", params=parameters)
        for key, parameters in groups.items()
        if any(group["params"] for group in parameters)
    }


def _loss_groups(settings: dict[str, Any], loss: nn.Module, lr: float) -> list[dict[str, Any]]:
    if isinstance(loss, MultipleLosses):
        return [group for each in loss.losses for group in _loss_groups(settings, each, lr) if group["params"]]
    rates = {key: settings[key] for key in ("proxy_lr", "concentration_lr", "temperature_lr")}
    decay = settings["loss_weight_decay"]
    if hasattr(loss, "param_groups"):
        return list(loss.param_groups(lr, weight_decay=decay, **rates))  # type: ignore[operator]
    rate = _PML_PROXY_RATE * lr if rates["proxy_lr"] is None else rates["proxy_lr"]
    return [{"params": list(loss.parameters()), "lr": rate, "weight_decay": decay}]


def _build_schedulers(settings: dict[str, Any], optimizers: dict[str, torch.optim.Optimizer]) -> dict[str, Any]:
    """A cosine schedule ends with the run, also with one that is trained for longer."""
    config, epochs = settings["schedule"]["scheduler"], settings["general"]["epochs"]
    return {
        key.replace("_optimizer", "_scheduler_by_epoch"): registry.build(
            "scheduler", config, "schedule.scheduler", optimizer=optimizer, T_max=epochs
        )
        for key, optimizer in optimizers.items()
        if config
    }
