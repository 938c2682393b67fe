"""The same data, model and schedule under several losses and seeds, and a table of what came out."""

import contextlib
import io
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from tqdm import tqdm

from ..reports.tables import Row, summarise
from . import registry, run
from .build import check_objects
from .config import Composed, compose, differences, load_saved
from .config_files import COMMAND_LINE, loss_class
from .errors import ConfigError, nearest
from .interrupts import check, children_wait_with_interrupts, end_on_interrupt, end_with_parent

_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Job:
    """One run of a comparison."""

    loss: str
    seed: int
    config: DictConfig
    folder: Path
    overwrite: bool = False


def plan(
    name: str,
    losses: Sequence[str],
    seeds: int | None,
    overrides: Sequence[str],
    folder: Path,
    overwrite: bool = False,
    vary: str | None = None,
) -> list[Job]:
    """One job a loss, varied value and seed; composing them all checks every configuration before any training."""
    first = compose(name, overrides)
    start = first.config.general.seed
    names = list(losses) or first.compare or [first.loss_variant]
    check_effect(names, overrides)
    _check_place_and_loss(first, names, overrides)
    jobs = []
    for loss in names:
        for label, varied in _varied(loss, vary):
            for seed in range(start, start + (first.seeds if seeds is None else seeds)):
                target = folder / label / f"seed-{seed}"
                own = [text for text in (*overrides, *varied) if concerns(text, loss)]
                settings = [*own, f"loss={loss}", f"general.seed={seed}", f"general.run_dir={json.dumps(str(target))}"]
                composed = compose(name, settings)
                check_objects(composed)
                check_class(composed, loss)
                if not overwrite:
                    _check_same(composed.config, target)
                jobs.append(Job(label, seed, composed.config, target, overwrite))
    if len({job.folder for job in jobs}) < len(jobs):
        raise ConfigError(f"two rows go by one name: {', '.join(dict.fromkeys(job.loss for job in jobs))}")
    return jobs


def _varied(loss: str, vary: str | None) -> list[tuple[str, list[str]]]:
    """(label, overrides) of a loss: one, or one for each of the values in `KEY=VALUE,VALUE,…`."""
    stem = Path(loss).stem
    if vary is None:
        return [(stem, [])]
    key, equals, values = vary.partition("=")
    if not equals or not values:
        raise ConfigError(f"--vary takes KEY=VALUE,VALUE,…, got {vary!r}")
    if "/" in values or "\\" in values or "\0" in values:
        raise ConfigError(f"--vary {vary!r}: runs are kept in folders of that name, which paths cannot be part of")
    if not concerns(vary, loss):
        raise ConfigError(f"--vary {key}: {loss} is a {loss_class(loss)}; name its own arguments, or other --losses")
    return [(f"{stem}-{key.split('.')[-1]}-{value}", [f"{key}={value}"]) for value in values.split(",")]


def _check_place_and_loss(first: Composed, losses: Sequence[str], overrides: Sequence[str]) -> None:
    """Both have options of their own, which would win in silence."""
    keys = [text.partition("=")[0] for text in overrides]
    if "general.run_dir" in keys:
        raise ConfigError(f"{COMMAND_LINE}: general.run_dir is one run's folder: choose that of several with --dir")
    if "loss" in keys and first.variants["loss"] and first.loss_variant not in losses:
        raise ConfigError(f"{COMMAND_LINE}: loss={first.loss_variant} is not compared: choose losses with --losses")


def check_effect(losses: Sequence[str], overrides: Sequence[str]) -> None:
    """Refuse overrides that would have no effect."""
    for text in overrides:
        key = text.partition("=")[0]
        if not any(concerns(text, loss) for loss in losses):
            classes = sorted({loss_class(loss) for loss in losses})
            hint = nearest(key.split(".")[1], classes)
            raise ConfigError(f"{COMMAND_LINE}: {key}: no loss here is of that class{hint}")


def concerns(override: str, loss: str) -> bool:
    """`loss.SomeLoss.argument=…` is for the losses of that class; everything else is for all."""
    parts = override.partition("=")[0].split(".")
    return parts[0] != "loss" or len(parts) < 2 or parts[1].split("~")[0] == loss_class(loss)


def check_class(composed: Composed, loss: str) -> None:
    """Every row of the table must be what its name says, whatever the experiment's own `loss` section holds."""
    found = next(iter(composed.config.loss))
    if found != loss_class(loss):
        raise ConfigError(
            f"{loss} is a {loss_class(loss)}, but the configuration makes it a {found}: to compare losses, give their "
            "arguments under per_loss or as loss.ClassName.argument=value, or add variants"
        )


def _check_same(config: DictConfig, folder: Path) -> None:
    """A run that is there already may stand for a job only if it is the same one."""
    if (folder / "config.yaml").exists():
        ignore = ("general.run_dir", "general.threads")
        changed = differences(config, load_saved(folder / "config.yaml"), ignore)
        if changed:
            raise ConfigError(
                f"{folder} holds a run with another {', '.join(changed)}: choose another --dir, or pass --overwrite"
            )


def run_jobs(jobs: Sequence[Job], workers: int, plugins: Sequence[str] = ()) -> list[Row]:
    """Run jobs side by side, each on one thread; finished ones are taken as they are, unfinished ones are resumed."""
    epochs = sum(job.config.general.epochs for job in jobs)
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    with (
        ProcessPoolExecutor(
            workers, mp_context=context, initializer=_prepare_worker, initargs=(list(plugins),)
        ) as pool,
        tqdm(total=epochs, unit="epoch", file=sys.stderr, mininterval=_refresh_seconds()) as bar,
    ):
        others = multiprocessing.active_children()
        try:
            with children_wait_with_interrupts():
                futures = {pool.submit(_run_job, job): job for job in jobs}
            _watch(futures, bar)
        except BaseException:
            for worker in set(multiprocessing.active_children()) - set(others):
                worker.terminate()  # the pool would wait for their trainings
            raise
    return summarise([(job.loss, json.loads((job.folder / "summary.json").read_text())) for job in jobs])


def default_workers(jobs: int) -> int:
    return max(1, min(jobs, os.cpu_count() or 1))


def _refresh_seconds() -> float:
    """How often the bar is drawn: a file keeps every line, a terminal the last."""
    return _POLL_SECONDS if sys.stderr.isatty() else 30.0


def _prepare_worker(plugins: list[str]) -> None:
    end_on_interrupt()
    end_with_parent()
    for plugin in plugins:
        registry.load_plugin(plugin)


def _run_job(job: Job) -> None:
    job.config.general.threads = 1
    with contextlib.redirect_stderr(io.StringIO()):  # PML's own bars, one an epoch: the comparison has one for all
        if (job.folder / "config.yaml").exists() and not job.overwrite:
            run.resume(job.folder)
        else:
            run.start(job.config, job.folder, job.overwrite)


def _watch(futures: dict["Future[None]", Job], bar: Any) -> None:
    """Follow the runs' histories until all are done; the first failure is raised as it is."""
    while True:
        done = [future for future in futures if future.done()]
        for future in done:
            future.result()
        bar.update(sum(_epochs_done(job) for job in futures.values()) - bar.n)
        running = [job for future, job in futures.items() if future.running()]
        bar.set_description(", ".join(f"{job.loss} {job.seed}" for job in running[:2]), refresh=False)
        if len(done) == len(futures):
            bar.update(bar.total - bar.n)  # early stopping leaves epochs out
            return
        check()
        time.sleep(_POLL_SECONDS)


def _epochs_done(job: Job) -> int:
    try:
        return len(json.loads((job.folder / "history.json").read_text()))
    except FileNotFoundError:
        return 0
