"""Everything that a run is made of at the end of an epoch, for checkpoints."""

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from pytorch_metric_learning.losses import CrossBatchMemory
from torch import nn

from . import checkpoint
from .build import Parts
from .config import to_yaml
from .errors import ConfigError


@dataclass
class Progress:
    """What a run knows of itself beyond weights."""

    history: list[dict[str, Any]] = field(default_factory=list)
    best_epoch: int = 0
    best_score: float = -math.inf
    evaluations_since_best: int = 0
    seconds: float = 0.0


def modules(parts: Parts) -> dict[str, nn.Module]:
    return {"trunk": parts.trunk, "embedder": parts.embedder, "loss": parts.loss}


def weights(parts: Parts) -> dict[str, dict[str, Any]]:
    return {name: module.state_dict() for name, module in modules(parts).items()}


def load_weights(parts: Parts, state: dict[str, Any], source: str) -> None:
    """Put weights in place, which may come from a file of any origin."""
    try:
        for name, module in modules(parts).items():
            module.load_state_dict(state[name])
    except (KeyError, RuntimeError, TypeError, AttributeError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{source} does not fit the configuration of its run: {reason}") from error


def of_run(config: DictConfig, parts: Parts, epoch: int, progress: Progress) -> dict[str, Any]:
    return {
        "epoch": epoch,
        "config": to_yaml(config),
        **weights(parts),
        "optimizers": {name: optimizer.state_dict() for name, optimizer in parts.optimizers.items()},
        "schedulers": {name: scheduler.state_dict() for name, scheduler in parts.schedulers.items()},
        "scaler": None if parts.scaler is None else parts.scaler.state_dict(),
        "rng": checkpoint.rng_state(),
        "memories": {name: (each.queue_idx, each.has_been_filled) for name, each in _memories(parts.loss)},
        "sampler": {name: torch.as_tensor(np.asarray(order)) for name, order in _orders(parts.sampler).items()},
        "progress": asdict(progress),
    }


def restore(parts: Parts, state: dict[str, Any], source: str) -> Progress:
    load_weights(parts, state, source)
    try:
        for name, optimizer in parts.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        for name, scheduler in parts.schedulers.items():
            scheduler.load_state_dict(state["schedulers"][name])
        if parts.scaler is not None:
            parts.scaler.load_state_dict(state["scaler"])
        for name, order in _orders(parts.sampler).items():
            order[:] = _of_same_shape(name, state["sampler"][name], order)
        for name, memory in _memories(parts.loss):
            memory.queue_idx, memory.has_been_filled = state["memories"][name]
        checkpoint.restore_rng_state(state["rng"])
        return _progress(state["progress"], state["epoch"])
    except (KeyError, RuntimeError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{source} does not fit the configuration of its run: {error}") from error


def _of_same_shape(name: str, saved: torch.Tensor, order: Any) -> list[Any]:
    """Of a file of any origin: a tensor of one number can say that it is of a billion."""
    if saved.shape != np.shape(order):
        raise ValueError(f"its sampler's {name} has shape {tuple(saved.shape)}, expected {np.shape(order)}")
    return saved.tolist()


def _progress(saved: dict[str, Any], epoch: Any) -> Progress:
    """Of a file of any origin: metric names become columns of a database, so they are looked at."""
    progress = Progress(**saved)
    for row in progress.history:
        for name, value in row.items():
            if not (isinstance(name, str) and name.isidentifier() and isinstance(value, int | float | None)):
                raise ValueError(f"its history holds {name!r}: {value!r}, which is no metric")
    if len(progress.history) != epoch:
        raise ValueError(f"it is of epoch {epoch!r}, but its history has {len(progress.history)}")
    if not isinstance(progress.best_epoch, int):
        raise ValueError(f"its best epoch is {progress.best_epoch!r}, which is no number")
    return progress


def _memories(loss: nn.Module) -> list[tuple[str, CrossBatchMemory]]:
    """Their state_dict holds embeddings, but not how many and where the next ones go."""
    return [(name, module) for name, module in loss.named_modules() if isinstance(module, CrossBatchMemory)]


def _orders(sampler: Any) -> dict[str, Any]:
    """A sampler's lists and arrays of integers: PML's samplers shuffle them in place, so their order is state."""
    held = {} if sampler is None else vars(sampler)
    return {name: value for name, value in held.items() if isinstance(value, list | np.ndarray) and _integers(value)}


def _integers(value: Any) -> bool:
    return len(value) > 0 and np.asarray(value).dtype.kind in "iu"
