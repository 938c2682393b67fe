"""One run: train, evaluate and save a checkpoint after every epoch, test the best epoch."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from omegaconf import DictConfig

from ..files import finite, read_json, remove_partial, write_json, write_text
from ..losses.collectives import world
from . import checkpoint, uncertainty
from .build import Parts, build_parts
from .checkpoint import Progress
from .config import MACHINE, ConfigError, differences, parse_saved, to_yaml, with_overrides
from .distributed import is_first, on_first
from .evaluate import evaluate
from .folders import check_run
from .records import Recorder, environment
from .train import Trainer, build_trainer, fit_norms, warm_start

_CONFIG, _SUMMARY, _HISTORY = "config.yaml", "summary.json", "history.json"
# What a run writes after its configuration.
_OUTPUTS = (_SUMMARY, _HISTORY, checkpoint.NEWEST, checkpoint.BEST, uncertainty.ITEMS, uncertainty.PICTURES)
_EPOCHS = "general.epochs"

OnEpoch = Callable[[dict[str, Any]], bool]


def start(config: DictConfig, folder: Path, overwrite: bool = False, trial: OnEpoch | None = None) -> dict[str, Any]:
    """Start a run in a new folder and return its summary.

    Args:
        trial: for a trial of a sweep, which keeps neither weights nor logs and computes no test metrics; called with
            each epoch's row of metrics, it ends the run by returning True.
    """
    on_first(lambda: _check_startable(folder, overwrite))
    parts = build_parts(config)
    with _only_process(folder):
        on_first(lambda: _begin(config, folder, overwrite))
        return _Run(config, parts, folder, Progress(), trial).execute()


def resume(folder: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Continue a run from its checkpoint; return the summary of a finished run.

    Args:
        overrides: `general.epochs=20` trains a run for longer, also a finished one; settings of the machine may change.
    """
    on_first(lambda: check_run(folder))
    summary: dict[str, Any] | None = on_first(lambda: read_json(folder / _SUMMARY))
    if summary is not None and not overrides:
        on_first(lambda: print(f"{folder} is finished; {_EPOCHS}=N trains it longer"))
        return summary
    with _only_process(folder):
        config, state = on_first(lambda: _reopen(folder, overrides))
        parts = build_parts(config)
        progress = Progress() if state is None else checkpoint.restore(parts, state, f"{folder}: the checkpoint")
        return _Run(config, parts, folder, progress, trial=None).execute()


class _Run:
    """The course of a run from its progress so far to its summary."""

    def __init__(self, config: DictConfig, parts: Parts, folder: Path, progress: Progress, trial: OnEpoch | None):
        self.config, self.parts, self.folder, self.progress, self.trial = config, parts, folder, progress, trial
        self.status = "finished"
        self.split = "test" if config.evaluation.select_on == "test" else "validation"  # evaluated after epochs
        # Where there is no recorder, neither weights nor checkpoints are written.
        self.recorder = Recorder(folder, progress.history) if is_first() and trial is None else None

    def execute(self) -> dict[str, Any]:
        if self.config.general.threads is not None:
            torch.set_num_threads(self.config.general.threads)
        first = len(self.progress.history) + 1
        if first == 1:
            warm_start(self.config, self.parts)
        trainer = build_trainer(self.config, self.parts, self.after_epoch)
        trainer.seed_epoch(self.config.general.seed, first)
        self.epoch_start = time.perf_counter()
        if not self._out_of_patience():
            trainer.train(first, self.config.general.epochs)
        if self.recorder is not None:
            self.recorder.close()
        summary = self._summary()
        if self.trial is None:
            checkpoint.load_best(self.parts, self.folder)
            summary |= on_first(self._fit_norms_and_test)
        on_first(lambda: write_json(self.folder / _SUMMARY, summary))
        return dict(finite(summary))

    def _fit_norms_and_test(self) -> dict[str, Any]:
        if self.config.model.fit_norms:
            fit_norms(self.parts)
            checkpoint.save_best(self.parts, self.folder)
        return uncertainty.test_and_measure(self.parts, self.folder)

    def after_epoch(self, trainer: Trainer) -> bool:
        """Evaluate, record, save; return whether to continue. PML's trainer calls it after every epoch."""
        epoch = trainer.epoch
        row = {"epoch": epoch, "train_loss": trainer.mean_loss()}
        if epoch % self.config.evaluation.every == 0 or epoch == self.config.general.epochs:
            if len(getattr(self.parts.data, self.split)):
                row |= evaluate(self.parts, self.split)
            self._update_best(row)
        now = time.perf_counter()
        self.progress.seconds, self.epoch_start = self.progress.seconds + now - self.epoch_start, now
        self.progress.history.append(row)
        if self.recorder is not None:
            checkpoint.save(self.parts, self.progress, self.folder)
            self.recorder.add(row)
        if is_first():
            write_json(self.folder / _HISTORY, self.progress.history)
            print(self._line(row), flush=True)
        if self.trial is not None and self.trial(row):
            self.status = "pruned"
        trainer.seed_epoch(self.config.general.seed, epoch + 1)
        return self.status == "finished" and not self._out_of_patience()

    def _line(self, row: dict[str, Any]) -> str:
        select = self.config.evaluation.select
        values = [f"{name} {value:.4g}" for name, value in row.items() if name.endswith(("train_loss", select))]
        chosen = self.config.evaluation.select_on != "last" and self.progress.best_epoch == row["epoch"]
        return f"epoch {row['epoch']}/{self.config.general.epochs}: {', '.join(values)}{' (best)' * chosen}"

    def _update_best(self, row: dict[str, Any]) -> None:
        """Keep the weights of the best score, or of every epoch if the last one is tested."""
        evaluation, progress = self.config.evaluation, self.progress
        score = row.get(f"{self.split}_{evaluation.select}", math.nan)
        is_better = score >= progress.best_score or evaluation.select_on == "last"  # of equal ones the later
        progress.evaluations_since_best += 1
        if is_better or progress.best_epoch == 0:  # a first score may be NaN; one epoch is tested
            progress.best_score = -math.inf if math.isnan(score) else score
            progress.best_epoch, progress.evaluations_since_best = row["epoch"], 0
            if self.recorder is not None:
                checkpoint.save_best(self.parts, self.folder)

    def _out_of_patience(self) -> bool:
        patience = self.config.schedule.patience
        return patience is not None and self.progress.evaluations_since_best >= patience

    def _summary(self) -> dict[str, Any]:
        select_on = self.config.evaluation.select_on
        return {
            "status": self.status,
            "loss": next(iter(self.config.loss)),
            "seed": self.config.general.seed,
            "epochs": len(self.progress.history),
            "best_epoch": self.progress.best_epoch,
            "selected_by": "last epoch" if select_on == "last" else f"{self.split}_{self.config.evaluation.select}",
            "validation_score": self.progress.best_score if self.split == "validation" else None,
            "seconds": round(self.progress.seconds, 2),
        }


# The folder of a run --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _only_process(folder: Path) -> Iterator[None]:
    """Lock the folder, on rank 0. The system releases the lock when the process ends, however it ends."""
    lock = FileLock(folder / ".lock")

    def acquire() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            remedy = "wait for it to end, or choose another general.run_dir"
            raise ConfigError(f"{folder} is in use by another process: {remedy}") from None

    on_first(acquire)
    try:
        yield
    finally:
        lock.release()


def is_begun(folder: Path) -> bool:
    """Return whether the folder contains a run, which can be resumed."""
    return (folder / _CONFIG).exists()


def _check_startable(folder: Path, overwrite: bool) -> None:
    if not overwrite and any((folder / name).exists() for name in (_CONFIG, *_OUTPUTS)):
        finished = (folder / _SUMMARY).exists()
        contents = "a finished run: " if finished else f"an unfinished run: use --resume {folder}, "
        remedy = "choose another general.run_dir, or pass --overwrite to replace it"
        raise ConfigError(f"{folder} contains {contents}{remedy}")


def _begin(config: DictConfig, folder: Path, overwrite: bool) -> None:
    _check_startable(folder, overwrite)  # building took time
    (folder / _CONFIG).unlink(missing_ok=True)  # first: without it there is no run, whatever a kill leaves
    for name in _OUTPUTS:
        (folder / name).unlink(missing_ok=True)
    remove_partial(folder)
    write_json(folder / "environment.json", environment() | {"seed": config.general.seed, "ranks": world()})
    write_text(folder / _CONFIG, to_yaml(config))  # from here on it is a run


def _reopen(folder: Path, overrides: Sequence[str]) -> tuple[DictConfig, dict[str, Any] | None]:
    """Return configuration and checkpoint. A finished run that is to have more epochs becomes unfinished."""
    remove_partial(folder)
    path, variable = folder / _CONFIG, (_EPOCHS, *MACHINE)
    config = with_overrides(parse_saved(path.read_text(), str(path)), overrides, variable)
    state = checkpoint.load(folder)
    if state is not None:
        if changed := differences(config, parse_saved(state["config"], f"{folder}: the checkpoint"), variable):
            raise ConfigError(f"{path} differs from the checkpoint's configuration in {', '.join(changed)}")
        epochs, more = state["epoch"], config.general.epochs
        if (folder / _SUMMARY).exists() and more <= epochs:
            raise ConfigError(f"{folder} has finished {epochs} epochs: set {_EPOCHS} to more, got {more}")
    write_text(path, to_yaml(config))
    (folder / _SUMMARY).unlink(missing_ok=True)
    return config, state
