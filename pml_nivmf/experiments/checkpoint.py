"""Checkpoints: everything a run needs to continue with the same numbers, written completely or not at all."""

import io
import math
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from pytorch_metric_learning.losses import CrossBatchMemory
from torch import nn

from ..files import write_atomically
from .build import Parts
from .config import ConfigError, to_yaml
from .distributed import on_first

NEWEST, BEST = "checkpoint.pt", "best.pt"  # everything after the newest epoch, the weights of the best one


@dataclass
class Progress:
    """The course of a run so far."""

    history: list[dict[str, Any]] = field(default_factory=list)  # one row per epoch
    best_epoch: int = 0
    best_score: float = -math.inf
    evaluations_since_best: int = 0
    seconds: float = 0.0


def save(parts: Parts, progress: Progress, folder: Path) -> None:
    """Write the state of a run; generators and samplers are not part of it, because every epoch is seeded anew."""
    state = {
        "epoch": len(progress.history),
        "config": to_yaml(parts.config),
        **_states(_stateful(parts)),
        "memories": {name: (memory.queue_idx, memory.has_been_filled) for name, memory in _memories(parts.loss)},
        "progress": asdict(progress),
    }
    _write(folder / NEWEST, state)


def load(folder: Path) -> dict[str, Any] | None:
    """Return the state of a run after its newest epoch, or None before the first one has ended."""
    return load_tensors(folder / NEWEST) if (folder / NEWEST).exists() else None


def save_best(parts: Parts, folder: Path) -> None:
    _write(folder / BEST, _states(parts.modules()))


def load_best(parts: Parts, folder: Path) -> None:
    """Load the weights of a run's best epoch."""
    _load_states(parts.modules(), on_first(lambda: load_tensors(folder / BEST)), str(folder / BEST))


def load_tensors(path: Path) -> dict[str, Any]:
    """Load a checkpoint, without running code from the file."""
    try:
        return dict(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:  # torch raises many types for a truncated or unrelated file
        reason = f"{path} cannot be read ({type(error).__name__})"
        raise ValueError(f"{reason}: start the run again with --overwrite") from error


def _write(path: Path, state: dict[str, Any]) -> None:
    buffer = io.BytesIO()  # torch.save into a file hides the system's error, such as a full disk
    torch.save(state, buffer)
    write_atomically(path, lambda file: file.write(buffer.getbuffer()))


def restore(parts: Parts, state: dict[str, Any], source: str) -> Progress:
    """Load the state of a run; learning rates are those of its schedule, which may be longer than it was."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch expects steps of the optimizer between those of the schedule
        for scheduler in parts.schedulers.values():
            for _ in range(state["epoch"]):
                scheduler.step()
    groups = {name: optimizer.state_dict()["param_groups"] for name, optimizer in parts.optimizers.items()}
    _load_states(_stateful(parts), state, source)
    for name, optimizer in parts.optimizers.items():
        optimizer.load_state_dict(optimizer.state_dict() | {"param_groups": groups[name]})
    for name, memory in _memories(parts.loss):
        memory.queue_idx, memory.has_been_filled = state["memories"][name]
    return Progress(**state["progress"])


def _stateful(parts: Parts) -> dict[str, Any]:
    return {**parts.modules(), **parts.optimizers, "scaler": parts.scaler}


def _states(objects: dict[str, Any]) -> dict[str, Any]:
    return {name: each.state_dict() for name, each in objects.items()}


def _load_states(objects: dict[str, Any], states: dict[str, Any], source: str) -> None:
    try:
        for name, each in objects.items():
            each.load_state_dict(states[name])
    except (KeyError, RuntimeError, ValueError) as error:
        raise ConfigError(f"{source} does not fit the configuration of its run: {error}") from error


def _memories(loss: nn.Module) -> list[tuple[str, CrossBatchMemory]]:
    """A CrossBatchMemory's state_dict has the embeddings, but not how many there are and where the next ones go."""
    return [(name, module) for name, module in loss.named_modules() if isinstance(module, CrossBatchMemory)]
