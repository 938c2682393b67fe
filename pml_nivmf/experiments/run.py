"""One training run: config → build → train → evaluate → record, with a checkpoint after every epoch."""

import json
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from ..losses.collectives import world
from . import artifacts, checkpoint, divergence, exhaustion, interrupts, locking
from . import state as run_state
from .build import Parts, build_parts
from .config import differences, load_saved, parse_saved, to_yaml
from .distributed import entered_on_first, is_first, on_first, seed_rank
from .errors import ConfigError
from .records import HistoryFile, NoRecords, Recorder, environment
from .state import Progress
from .training import build_trainer, train_epoch, warm_start

_CONFIG, _SUMMARY, _BEST = "config.yaml", "summary.json", "best.pt"
# A run may be lengthened, moved and given other hardware; anything else would be another run.
_MAY_CHANGE = ("general.epochs", "general.run_dir", "general.threads", "general.device", "general.num_workers")


OnEpoch = Callable[[dict[str, Any]], bool]


def start(config: DictConfig, folder: Path, overwrite: bool = False, trial: OnEpoch | None = None) -> dict[str, Any]:
    """Run from the beginning in an empty folder; returns the summary.

    With `trial` it is a trial of a sweep, made cheap: no test metrics, no weights and no logs but the history are kept,
    and `trial` is called with each epoch's row and may end the run by returning True.
    """
    on_first(lambda: locking.check_free(folder))
    on_first(lambda: _check_startable(folder, overwrite))
    parts = build_parts(config)
    with exhaustion.explained(folder), entered_on_first(locking.only_process(folder)):
        on_first(lambda: _begin(config, folder, overwrite))
        return _run(config, parts, folder, None, trial)


def resume(folder: Path) -> dict[str, Any]:
    """Continue a run from its last whole checkpoint; a finished one only returns its summary."""
    summary = on_first(lambda: _finished(folder))
    if summary is not None:
        return summary
    with exhaustion.explained(folder), entered_on_first(locking.only_process(folder)):
        config, state = on_first(lambda: _saved(folder))
        return _run(config, build_parts(config), folder, state)


def _run(
    config: DictConfig, parts: Parts, folder: Path, state: dict[str, Any] | None, trial: OnEpoch | None = None
) -> dict[str, Any]:
    if config.general.threads is not None:
        torch.set_num_threads(config.general.threads)
    progress = Progress() if state is None else run_state.restore(parts, state, f"{folder}: the checkpoint")
    if state is None:
        warm_start(config, parts)
    first = 1 if state is None else state["epoch"] + 1
    recorder, writes = _recorder(folder, progress, trial), is_first() and trial is None
    trainer = build_trainer(config, parts)
    status = "finished"
    for epoch in range(first, config.general.epochs + 1):
        if _should_stop(config, progress):
            break
        began = time.perf_counter()
        seed_rank(config.general.seed, epoch)
        now = partial(run_state.of_run, config, parts, epoch, progress)
        evaluates = epoch % config.evaluation.every == 0 or epoch == config.general.epochs
        with divergence.explained(parts, trainer, epoch, folder, now if writes else None):
            row = {"epoch": epoch, "train_loss": train_epoch(trainer, epoch)}
            if evaluates:
                row |= _evaluate(parts, "validation", epoch)
        if evaluates and _update_best(config, progress, row) and writes:
            checkpoint.write_atomically(folder / _BEST, lambda file: torch.save(run_state.weights(parts), file))
        progress.seconds += time.perf_counter() - began
        progress.history.append(row)
        if writes:
            checkpoint.save(folder / "checkpoints", now())
        recorder.add(row)
        if trial is not None and trial(row):
            status = "pruned"
            break
    recorder.close()
    summary = _summary(config, progress, status)
    if trial is None:
        summary |= _test(parts, folder, progress.best_epoch)
    summary = checkpoint.finite(summary)
    on_first(lambda: checkpoint.write_json(folder / _SUMMARY, summary))
    return summary


def _recorder(folder: Path, progress: Progress, trial: OnEpoch | None) -> Recorder | HistoryFile | NoRecords:
    if not is_first():
        return NoRecords()
    return Recorder(folder, progress.history) if trial is None else HistoryFile(folder)


def _should_stop(config: DictConfig, progress: Progress) -> bool:
    patience = config.schedule.patience
    return patience is not None and progress.evaluations_since_best >= patience


# Evaluation -----------------------------------------------------------------------------------------------------


def _evaluate(parts: Parts, split: str, epoch: int) -> dict[str, float]:
    """Metrics of one split, as `SPLIT_METRIC`."""
    dataset = getattr(parts.data, split)
    parts.testers[split].accuracy_calculator.embedding_scale = artifacts.embedding_scale(parts.loss)
    found = parts.testers[split].test({split: dataset}, epoch, parts.trunk, parts.embedder)[split]
    accuracies = on_first(lambda: found)  # who alone computes them
    suffix = "_level0"
    return {f"{split}_{k.removesuffix(suffix)}": float(v) for k, v in accuracies.items() if k.endswith(suffix)}


def _update_best(config: DictConfig, progress: Progress, row: dict[str, Any]) -> bool:
    """Whether this epoch is the best so far."""
    score = row[f"validation_{config.evaluation.select}"]
    if score > progress.best_score or progress.best_epoch == 0:  # a first score may be NaN: some epoch must be tested
        best = -math.inf if math.isnan(score) else score
        progress.best_score, progress.best_epoch, progress.evaluations_since_best = best, row["epoch"], 0
        return True
    progress.evaluations_since_best += 1
    return False


def _test(parts: Parts, folder: Path, epoch: int) -> dict[str, Any]:
    """Test metrics of the epoch that validation chose, the test set has no say in the choice; and what a report shows
    of it."""
    interrupts.check()
    best = on_first(lambda: checkpoint.load_weights(folder / _BEST))
    run_state.load_weights(parts, best, str(folder / _BEST))
    with artifacts.kept_embeddings(parts.testers["test"]) as kept:
        metrics = {name.removeprefix("test_"): value for name, value in _evaluate(parts, "test", epoch).items()}
    embeddings, labels = kept["test"]
    uncertainty = on_first(lambda: artifacts.write(parts, embeddings, labels[:, 0], folder))
    return {"test": metrics, "uncertainty": uncertainty}


def _summary(config: DictConfig, progress: Progress, status: str) -> dict[str, Any]:
    return {
        "status": status,
        "loss": next(iter(config.loss)),
        "seed": config.general.seed,
        "epochs": progress.history[-1]["epoch"],
        "best_epoch": progress.best_epoch,
        "selected_by": f"validation_{config.evaluation.select}",
        "validation_score": progress.best_score,
        "seconds": round(progress.seconds, 2),
    }


# Folder ---------------------------------------------------------------------------------------------------------


def _begin(config: DictConfig, folder: Path, overwrite: bool) -> None:
    _check_startable(folder, overwrite)  # building took its time
    _check_links(folder)
    _clear(folder)
    checkpoint.remove_partial(folder)
    surroundings = environment() | {"seed": config.general.seed, "ranks": world()}
    checkpoint.write_json(folder / "environment.json", surroundings)
    checkpoint.write_text(folder / _CONFIG, to_yaml(config))  # from here on it is a run


def is_begun(folder: Path) -> bool:
    """Whether the folder holds a run, which can be resumed."""
    return (folder / _CONFIG).exists()


def _finished(folder: Path) -> dict[str, Any] | None:
    """The summary of a finished run."""
    if not is_begun(folder):
        raise ConfigError(f"{folder} is no run folder: it has no {_CONFIG}")
    return dict(json.loads((folder / _SUMMARY).read_text())) if (folder / _SUMMARY).exists() else None


def _saved(folder: Path) -> tuple[DictConfig, dict[str, Any] | None]:
    """Configuration and last whole checkpoint of an unfinished run."""
    _check_links(folder)
    checkpoint.remove_partial(folder)
    config = load_saved(folder / _CONFIG)
    state = checkpoint.load_newest(folder / "checkpoints")
    if state is not None:
        _check_same(config, state, folder)
    return config, state


def _check_startable(folder: Path, overwrite: bool) -> None:
    if (folder / _SUMMARY).exists() and not overwrite:
        raise ConfigError(f"{folder} holds a finished run: choose another general.run_dir, or pass --overwrite")
    if is_begun(folder) and not overwrite:
        raise ConfigError(f"{folder} holds an unfinished run: continue it with --resume {folder}, or pass --overwrite")
    foreign = [path.name for path in _left_by_runs(folder) if path.exists()]
    if foreign and not overwrite:  # a configuration from anywhere could name a folder of the user's
        raise ConfigError(
            f"{folder} is no run folder, but holds {foreign[0]}, which a run would write: choose another "
            "general.run_dir, or pass --overwrite to delete it"
        )


def _check_same(config: DictConfig, state: dict[str, Any], folder: Path) -> None:
    changed = differences(config, parse_saved(state["config"], f"{folder}: the checkpoint"), ignore=_MAY_CHANGE)
    if changed:
        raise ConfigError(f"{folder / _CONFIG} differs from the checkpoint's configuration in {', '.join(changed)}")


def _check_links(folder: Path) -> None:
    """A run folder may come from anywhere: what is written or cleared in it must not be elsewhere."""
    for path in folder.iterdir():
        if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
            raise ConfigError(f"{path} is a link out of the run folder: put a real one in its place")


def _clear(folder: Path) -> None:
    """Remove what an earlier run left; only files that runs write."""
    (folder / _CONFIG).unlink(missing_ok=True)  # first: without it there is no run, whatever else a kill leaves
    for path in _left_by_runs(folder):
        path.unlink(missing_ok=True)


def _left_by_runs(folder: Path) -> list[Path]:
    """All that is written after the configuration."""
    return [
        folder / _SUMMARY,
        folder / _BEST,
        folder / divergence.CRASH,
        folder / "history.json",
        folder / artifacts.ITEMS,
        folder / artifacts.PICTURES,
        *folder.glob("checkpoints/epoch-*.pt"),
    ]
