"""Checkpoints: everything a run needs to continue with the same numbers, written completely or not at all."""

import io
import math
import random
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from pytorch_metric_learning.losses import CrossBatchMemory
from torch import nn

from ..files import write_atomically
from .build import Parts
from .config import ConfigError, to_yaml

_CHECKPOINTS = 2  # if a failing disk damages the newest, the one before it is used
_REQUIRED = ("epoch", "config", "trunk", "embedder", "loss", "optimizers", "schedulers", "rng", "sampler", "progress")


@dataclass
class Progress:
    """The course of a run so far."""

    history: list[dict[str, Any]] = field(default_factory=list)  # one row per epoch
    best_epoch: int = 0
    best_score: float = -math.inf
    evaluations_since_best: int = 0
    seconds: float = 0.0


def write_tensors(path: Path, value: dict[str, Any]) -> None:
    buffer = io.BytesIO()  # torch.save into a file hides the system's error, such as a full disk
    torch.save(value, buffer)
    write_atomically(path, lambda file: file.write(buffer.getbuffer()))


# Checkpoints ----------------------------------------------------------------------------------------------------


def save(folder: Path, state: dict[str, Any]) -> None:
    """Save `state` as the checkpoint of its epoch and delete all but the newest two."""
    write_tensors(folder / f"epoch-{state['epoch']:05d}.pt", state)
    for old in _newest_first(folder)[_CHECKPOINTS:]:
        old.unlink()


def load_newest(folder: Path) -> dict[str, Any] | None:
    """Return the newest readable checkpoint, or None. Warn about unreadable ones and skip them."""
    for path in _newest_first(folder):
        try:
            state = load_tensors(path)
        except ValueError as error:
            warnings.warn(f"{error}; using the checkpoint before it", stacklevel=2)
            continue
        missing = [key for key in _REQUIRED if key not in state]
        if missing:
            raise ValueError(f"{path} is not the checkpoint of a run: it lacks {', '.join(missing)}")
        return state
    return None


def load_tensors(path: Path) -> dict[str, Any]:
    """Load what `write_tensors` wrote, without running code from the file."""
    try:
        return dict(torch.load(path, map_location="cpu", weights_only=True))
    except FileNotFoundError:
        raise ValueError(f"{path} is missing: start the run again with --overwrite") from None
    except Exception as error:  # torch raises many types for a truncated or unrelated file
        raise ValueError(f"{path} cannot be read ({type(error).__name__})") from error


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("epoch-*.pt"), reverse=True)


# State of a run -------------------------------------------------------------------------------------------------


def weights(parts: Parts) -> dict[str, dict[str, Any]]:
    return {name: module.state_dict() for name, module in parts.modules().items()}


def state_of(config: DictConfig, parts: Parts, progress: Progress) -> dict[str, Any]:
    return {
        "epoch": len(progress.history),
        "config": to_yaml(config),
        **weights(parts),
        "optimizers": {name: optimizer.state_dict() for name, optimizer in parts.optimizers.items()},
        "schedulers": {name: scheduler.state_dict() for name, scheduler in parts.schedulers.items()},
        "scaler": None if parts.scaler is None else parts.scaler.state_dict(),
        "rng": _rng_state(),
        "memories": {name: (memory.queue_idx, memory.has_been_filled) for name, memory in _memories(parts.loss)},
        "sampler": {name: torch.as_tensor(np.asarray(order)) for name, order in _orders(parts.sampler).items()},
        "progress": asdict(progress),
    }


def restore(parts: Parts, state: dict[str, Any], source: str) -> Progress:
    load_weights(parts, state, source)
    for name, optimizer in parts.optimizers.items():
        optimizer.load_state_dict(state["optimizers"][name])
    for name, scheduler in parts.schedulers.items():
        scheduler.load_state_dict(state["schedulers"][name])
    if parts.scaler is not None:
        parts.scaler.load_state_dict(state["scaler"])
    for name, order in _orders(parts.sampler).items():
        order[:] = state["sampler"][name].tolist()
    for name, memory in _memories(parts.loss):
        memory.queue_idx, memory.has_been_filled = state["memories"][name]
    _restore_rng_state(state["rng"])
    return Progress(**state["progress"])


def load_weights(parts: Parts, state: dict[str, Any], source: str) -> None:
    try:
        for name, module in parts.modules().items():
            module.load_state_dict(state[name])
    except (KeyError, RuntimeError) as error:
        raise ConfigError(f"{source} does not fit the configuration of its run: {error}") from error


def _memories(loss: nn.Module) -> list[tuple[str, CrossBatchMemory]]:
    """A CrossBatchMemory's state_dict has the embeddings, but not how many there are and where the next ones go."""
    return [(name, module) for name, module in loss.named_modules() if isinstance(module, CrossBatchMemory)]


def _orders(sampler: Any) -> dict[str, Any]:
    """Return a sampler's lists and arrays of integers: PML's samplers shuffle them in place, so they are state."""
    attributes = {} if sampler is None else vars(sampler)
    orders = {name: value for name, value in attributes.items() if isinstance(value, list | np.ndarray) and len(value)}
    return {name: value for name, value in orders.items() if np.asarray(value).dtype.kind in "iu"}


def _rng_state() -> dict[str, Any]:
    """Return the states of torch's, CUDA's, NumPy's and Python's generators in types that load without pickle."""
    name, keys, position, has_gauss, cached = np.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": (str(name), [int(key) for key in keys], int(position), int(has_gauss), float(cached)),
        "python": random.getstate(),
    }


def _restore_rng_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"][: torch.cuda.device_count()])  # there may be fewer GPUs now
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
