"""One training run: config → build → train → evaluate → record, with a checkpoint after every epoch."""

import json
import math
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from pytorch_metric_learning.trainers import MetricLossOnly
from torch import nn
from torch.utils.data import DataLoader

from ..losses import warm_start_from_loader
from . import checkpoint
from .build import Parts, build_parts
from .config import differences, load_saved, to_yaml
from .errors import ConfigError, nearest
from .records import Recorder, environment

_CONFIG, _SUMMARY = "config.yaml", "summary.json"
# A run may be lengthened, moved and given other hardware; anything else would be another run.
_MAY_CHANGE = ("general.epochs", "general.run_dir", "general.threads", "general.device", "general.num_workers")


@dataclass
class Progress:
    """What a run knows of itself beyond weights; saved in every checkpoint."""

    history: list[dict[str, Any]] = field(default_factory=list)
    best_epoch: int = 0
    best_score: float = -math.inf
    evaluations_since_best: int = 0
    seconds: float = 0.0


def start(config: DictConfig, folder: Path, overwrite: bool = False) -> dict[str, Any]:
    """Run from the beginning in an empty folder; returns the summary."""
    if (folder / _SUMMARY).exists() and not overwrite:
        raise ConfigError(f"{folder} holds a finished run: choose another general.run_dir, or pass --overwrite")
    if (folder / _CONFIG).exists() and not overwrite:
        raise ConfigError(f"{folder} holds an unfinished run: continue it with --resume {folder}, or pass --overwrite")
    parts = build_parts(config)
    _clear(folder)
    checkpoint.write_text(folder / _CONFIG, to_yaml(config))
    surroundings = environment() | {"seed": config.general.seed}
    checkpoint.write_text(folder / "environment.json", json.dumps(surroundings, indent=1))
    return _run(config, parts, folder, state=None)


def resume(folder: Path) -> dict[str, Any]:
    """Continue a run from its last whole checkpoint; a finished one only returns its summary."""
    if not (folder / _CONFIG).exists():
        raise ConfigError(f"{folder} is no run folder: it has no {_CONFIG}")
    if (folder / _SUMMARY).exists():
        return dict(json.loads((folder / _SUMMARY).read_text()))
    config = load_saved(folder / _CONFIG)
    state = checkpoint.load_newest(folder / "checkpoints")
    if state is not None:
        changed = differences(config, OmegaConf.create(state["config"]), ignore=_MAY_CHANGE)
        if changed:
            raise ConfigError(f"{folder / _CONFIG} differs from the checkpoint's configuration in {', '.join(changed)}")
    return _run(config, build_parts(config), folder, state)


def _run(config: DictConfig, parts: Parts, folder: Path, state: dict[str, Any] | None) -> dict[str, Any]:
    if config.general.threads is not None:
        torch.set_num_threads(config.general.threads)
    _check_selection(config, parts)
    progress = Progress() if state is None else _restore(parts, state)
    if state is None:
        _warm_start(config, parts)
    first = 1 if state is None else state["epoch"] + 1
    recorder = Recorder(folder, progress.history)
    trainer, watch = _build_trainer(config, parts)
    for epoch in range(first, config.general.epochs + 1):
        if _should_stop(config, progress):
            break
        began = time.perf_counter()
        trainer.train(start_epoch=epoch, num_epochs=epoch)
        row = {"epoch": epoch, "train_loss": watch.mean()}
        if epoch % config.evaluation.every == 0 or epoch == config.general.epochs:
            row |= _evaluate(parts, "validation", epoch)
            _update_best(config, parts, folder, progress, row)
        progress.seconds += time.perf_counter() - began
        progress.history.append(row)
        checkpoint.save(folder / "checkpoints", _state(config, parts, epoch, progress))
        recorder.add(row)
    recorder.close()
    return _finish(config, parts, folder, progress)


# Training -------------------------------------------------------------------------------------------------------


class _LossWatch:
    """Averages the loss over an epoch and stops a run whose loss is no longer a number."""

    def __init__(self) -> None:
        self._values: list[float] = []

    def __call__(self, trainer: MetricLossOnly) -> None:
        value = float(trainer.losses["total_loss"].detach())
        if not math.isfinite(value):
            raise FloatingPointError(
                f"the loss is {value} in epoch {trainer.epoch}, step {trainer.iteration}: lower the learning rates; "
                "the last checkpoint is intact"
            )
        self._values.append(value)

    def mean(self) -> float:
        mean = sum(self._values) / len(self._values)
        self._values.clear()
        return mean


def _build_trainer(config: DictConfig, parts: Parts) -> tuple[MetricLossOnly, _LossWatch]:
    watch = _LossWatch()
    trainer = MetricLossOnly(
        models={"trunk": parts.trunk, "embedder": parts.embedder},
        optimizers=parts.optimizers,
        batch_size=config.general.batch_size,
        loss_funcs={"metric_loss": parts.loss},
        dataset=parts.data.train,
        mining_funcs={"tuple_miner": parts.miner} if parts.miner is not None else {},
        data_device=parts.device,
        sampler=parts.sampler,
        lr_schedulers=parts.schedulers,
        gradient_clippers=parts.clippers,
        dataloader_num_workers=config.general.num_workers,
        end_of_iteration_hook=watch,
    )
    return trainer, watch


def _warm_start(config: DictConfig, parts: Parts) -> None:
    if config.schedule.warm_start and hasattr(parts.loss, "warm_start"):
        loader = DataLoader(parts.data.train_plain, batch_size=config.evaluation.batch_size)
        warm_start_from_loader(parts.loss, nn.Sequential(parts.trunk, parts.embedder), loader, parts.device)  # type: ignore[arg-type]


def _should_stop(config: DictConfig, progress: Progress) -> bool:
    patience = config.schedule.patience
    return patience is not None and progress.evaluations_since_best >= patience


# Evaluation -----------------------------------------------------------------------------------------------------


def _check_selection(config: DictConfig, parts: Parts) -> None:
    known = parts.tester.accuracy_calculator.get_curr_metrics()
    if config.evaluation.select not in known:
        message = f"evaluation.select: {config.evaluation.select!r} is not computed"
        raise ConfigError(message + nearest(config.evaluation.select, known), key="evaluation.select")


def _evaluate(parts: Parts, split: str, epoch: int) -> dict[str, float]:
    """Metrics of one split, as `SPLIT_METRIC`."""
    dataset = getattr(parts.data, split)
    accuracies = parts.tester.test({split: dataset}, epoch, parts.trunk, parts.embedder)[split]
    suffix = "_level0"
    return {f"{split}_{k.removesuffix(suffix)}": float(v) for k, v in accuracies.items() if k.endswith(suffix)}


def _update_best(config: DictConfig, parts: Parts, folder: Path, progress: Progress, row: dict[str, Any]) -> None:
    score = row[f"validation_{config.evaluation.select}"]
    if score > progress.best_score:
        progress.best_score, progress.best_epoch, progress.evaluations_since_best = score, row["epoch"], 0
        state = {name: module.state_dict() for name, module in _modules(parts).items()}
        checkpoint.write_atomically(folder / "best.pt", lambda file: torch.save(state, file))
    else:
        progress.evaluations_since_best += 1


def _finish(config: DictConfig, parts: Parts, folder: Path, progress: Progress) -> dict[str, Any]:
    """Test metrics of the epoch that validation chose; the test set has no say in the choice."""
    best = torch.load(folder / "best.pt", map_location="cpu", weights_only=True)
    for name, module in _modules(parts).items():
        module.load_state_dict(best[name])
    summary = {
        "status": "finished",
        "loss": next(iter(config.loss)),
        "seed": config.general.seed,
        "epochs": progress.history[-1]["epoch"],
        "best_epoch": progress.best_epoch,
        "selected_by": f"validation_{config.evaluation.select}",
        "validation_score": progress.best_score,
        "seconds": round(progress.seconds, 2),
        "test": {k.removeprefix("test_"): v for k, v in _evaluate(parts, "test", progress.best_epoch).items()},
    }
    checkpoint.write_text(folder / _SUMMARY, json.dumps(summary, indent=1))
    return summary


# State ----------------------------------------------------------------------------------------------------------


def _modules(parts: Parts) -> dict[str, nn.Module]:
    return {"trunk": parts.trunk, "embedder": parts.embedder, "loss": parts.loss}


def _state(config: DictConfig, parts: Parts, epoch: int, progress: Progress) -> dict[str, Any]:
    return {
        "epoch": epoch,
        "config": to_yaml(config),
        **{name: module.state_dict() for name, module in _modules(parts).items()},
        "optimizers": {name: optimizer.state_dict() for name, optimizer in parts.optimizers.items()},
        "schedulers": {name: scheduler.state_dict() for name, scheduler in parts.schedulers.items()},
        "rng": checkpoint.rng_state(),
        "sampler": {name: torch.as_tensor(np.asarray(order)) for name, order in _orders(parts.sampler).items()},
        "progress": asdict(progress),
    }


def _orders(sampler: Any) -> dict[str, Any]:
    """A sampler's lists and arrays of integers: PML's samplers shuffle them in place, so their order is state."""
    held = {} if sampler is None else vars(sampler)
    return {name: value for name, value in held.items() if isinstance(value, list | np.ndarray) and _integers(value)}


def _integers(value: Any) -> bool:
    return len(value) > 0 and np.asarray(value).dtype.kind in "iu"


def _restore(parts: Parts, state: dict[str, Any]) -> Progress:
    for name, module in _modules(parts).items():
        module.load_state_dict(state[name])
    for name, optimizer in parts.optimizers.items():
        optimizer.load_state_dict(state["optimizers"][name])
    for name, scheduler in parts.schedulers.items():
        scheduler.load_state_dict(state["schedulers"][name])
    for name, order in _orders(parts.sampler).items():
        order[:] = state["sampler"][name].tolist()
    checkpoint.restore_rng_state(state["rng"])
    return Progress(**state["progress"])


def _clear(folder: Path) -> None:
    """Remove what an earlier run left; only files that runs write."""
    for path in (
        folder / _SUMMARY,
        folder / "best.pt",
        folder / "history.json",
        *folder.glob("checkpoints/epoch-*.pt"),
    ):
        path.unlink(missing_ok=True)
