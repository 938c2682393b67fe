"""What moves the parameters of a run: optimizers with a rate for each kind of them, schedules, clipping."""

from typing import Any

import torch
from pytorch_metric_learning.losses import MultipleLosses
from torch import nn

from ..losses import JointProxyLoss, ProxyLoss
from . import registry
from .errors import ConfigError

# PML's proxy losses have no rule of their own: their proxies learn this much faster than the model, as ours do.
_PML_LOSS_RATE = 100.0
# Optimizers of torch that would fail at their first step.
_UNFIT = {
    "LBFGS": "evaluates the model several times a step, which PML's trainers do not: use Adam or SGD",
    "SparseAdam": "takes sparse gradients only, and the model's are dense: use Adam, or Adagrad with sparse=True",
}


def build_optimizers(
    settings: dict[str, Any], trunk: nn.Module, embedder: nn.Module, loss: nn.Module
) -> dict[str, torch.optim.Optimizer]:
    """One optimizer a module, of the same class; PML's trainer wants them under these names."""
    model = settings["model"]
    registry.check("optimizer", model, "optimizers.model")
    (name, arguments), *_ = model.items()
    lr = (arguments or {}).get("lr")
    if lr is None:
        raise ConfigError(f"optimizers.model.{name}: lr is missing; the other rates follow from it")
    _check_takes_gradients(name, arguments, loss)
    embedder_lr = lr if settings["embedder_lr"] is None else settings["embedder_lr"]
    groups = {
        "trunk_optimizer": [{"params": list(trunk.parameters())}],
        "embedder_optimizer": [{"params": list(embedder.parameters()), "lr": embedder_lr}],
        "metric_loss_optimizer": _loss_groups(settings, loss, lr),
    }
    return {
        key: registry.build("optimizer", model, "optimizers.model", params=parameters)
        for key, parameters in groups.items()
        if any(group["params"] for group in parameters)
    }


def _check_takes_gradients(optimizer: str, arguments: dict[str, Any], loss: nn.Module) -> None:
    if optimizer in _UNFIT:
        raise ConfigError(f"optimizers.model: {optimizer} {_UNFIT[optimizer]}", key="optimizers.model")
    is_sparse = any(isinstance(module, ProxyLoss) and module.sparse for module in loss.modules())
    if not is_sparse or not hasattr(torch.optim, optimizer):
        return
    if optimizer not in ("Adagrad", "SGD") or arguments.get("weight_decay"):
        raise ConfigError(
            f"loss: sparse=True gives gradients that optimizers.model={optimizer} cannot use: take Adagrad or SGD, "
            "without weight_decay, or leave sparse out",
            key="loss",
        )


def _loss_groups(settings: dict[str, Any], loss: nn.Module, lr: float) -> list[dict[str, Any]]:
    if isinstance(loss, MultipleLosses):
        return [group for each in loss.losses for group in _loss_groups(settings, each, lr) if group["params"]]
    rates = {key: settings[key] for key in ("proxy_lr", "concentration_lr", "temperature_lr")}
    if isinstance(loss, ProxyLoss | JointProxyLoss):
        return loss.param_groups(lr, **rates)
    rate = _PML_LOSS_RATE * lr if rates["proxy_lr"] is None else rates["proxy_lr"]
    return [{"params": list(loss.parameters()), "lr": rate}]


def build_schedulers(config: dict[str, Any], optimizers: dict[str, torch.optim.Optimizer]) -> dict[str, Any]:
    if not config:
        return {}
    return {
        key.replace("_optimizer", "_scheduler_by_epoch"): registry.build(
            "scheduler", config, "schedule.scheduler", optimizer=optimizer
        )
        for key, optimizer in optimizers.items()
    }


def build_clippers(clip_norm: float | None, trunk: nn.Module, embedder: nn.Module, loss: nn.Module) -> dict[str, Any]:
    if clip_norm is None:
        return {}
    modules = {"trunk": trunk, "embedder": embedder, "metric_loss": loss}
    return {
        f"{name}_grad_clipper": lambda module=module: nn.utils.clip_grad_norm_(module.parameters(), clip_norm)
        for name, module in modules.items()
    }
