"""Train the same data, model and schedule under several losses and seeds, and tabulate the test metrics."""

import io
import json
import multiprocessing
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from tqdm import tqdm

from ..checks import check_count, nearest
from ..files import read_json, write_json, write_text
from ..reports import tables
from . import own_images, registry, run
from .build import check_objects, compute_maps
from .config import Composed, ConfigError, compose, differences, loss_class, parse_saved
from .folders import short_override


@dataclass(frozen=True)
class Job:
    """One run of a comparison."""

    label: str  # of the row in the table
    config: DictConfig
    folder: Path

    @property
    def summary(self) -> dict[str, Any]:
        """Of a finished run; empty for others."""
        return read_json(self.folder / "summary.json") or {}

    @property
    def epochs(self) -> int:
        """How many are finished."""
        return len(read_json(self.folder / "history.json") or ())


def plan(
    name: str, losses: Sequence[str], seeds: int | None, overrides: Sequence[str], folder: Path, vary: str = ""
) -> list[Job]:
    """One job for each loss, value of `vary` (`KEY=VALUE,VALUE,…`) and seed, all checked before any training.

    With `dataset.splits`, all class splits are varied, unless something else is.
    """
    name, overrides = own_images.fitted(name, overrides)
    first = compose(name, overrides)
    splits = range(check_count("dataset.splits", first.config.dataset.get("splits", 0), at_least=0))
    by_split = f"dataset.split={','.join(map(str, splits))}" if splits and "split" not in first.config.dataset else ""
    start, suffixes = first.config.general.seed, _suffixes(vary or first.vary or by_split)
    jobs = []
    for loss, texts in overrides_of_losses(first, losses, [*overrides, *suffixes]).items():
        common = [text for text in texts if text not in suffixes]
        for varied in [[text] for text in texts if text in suffixes] or [[]]:
            label = "".join([Path(loss).stem, *map(suffixes.__getitem__, varied)])
            for seed in range(start, start + (seeds or first.seeds)):
                target = folder / label / f"seed-{seed}"
                jobs.append(Job(label, compose_loss(name, loss, common + varied, seed, target), target))
    return jobs


def _suffixes(vary: str) -> dict[str, str]:
    """{override: suffix of the label} for each value of `KEY=VALUE,VALUE,…`."""
    key, _, values = vary.partition("=")
    if vary and (not values or "/" in values):  # values become names of folders
        raise ConfigError(f"--vary takes KEY=VALUE,VALUE,… with values that are not paths, got {vary!r}")
    overrides = [f"{key}={value}" for value in values.split(",") if value]
    return {override: f"-{short_override(override)}" for override in overrides}


def overrides_of_losses(first: Composed, losses: Sequence[str], overrides: Sequence[str]) -> dict[str, list[str]]:
    """The losses to run, by default the experiment's, each with the overrides that apply to it."""
    names = list(losses) or first.compare or [first.loss_variant]
    if len({Path(name).stem for name in names}) < len(names):
        raise ConfigError(f"two losses have the same name: {', '.join(names)}")
    classes = {name: loss_class(name) for name in names}
    targets = [(text, target_class(text, classes.values(), "command line")) for text in overrides]
    return {name: [text for text, target in targets if target in (None, classes[name])] for name in names}


def target_class(override: str, classes: Iterable[str], where: str) -> str | None:
    """`loss.ClassName.argument=…` applies to losses of that class, which must be one of `classes`; others to all."""
    key = re.split("[=~]", override)[0]
    group, _, rest = key.partition(".")
    name = rest.partition(".")[0]
    if key == "general.run_dir":
        raise ConfigError(f"{where}: general.run_dir is the folder of one run: choose that of several with --dir")
    if group == "loss" and name not in classes:
        hint = "choose losses with --losses, set arguments with loss.ClassName.argument"
        raise ConfigError(f"{where}: {key}: {hint}{nearest(name, classes)}")
    return name if group == "loss" else None


def compose_loss(experiment: str, loss: str, overrides: Sequence[str], seed: int, folder: Path) -> DictConfig:
    """The checked configuration of one run with this loss."""
    placement = [f"general.seed={seed}", f"general.run_dir={json.dumps(str(folder), ensure_ascii=False)}"]
    composed = compose(experiment, [*overrides, *placement, f"loss={loss}"])
    composed.config.general.threads = composed.config.general.threads or 1  # that of a worker: the run can be repeated
    check_objects(composed)
    chosen, expected = next(iter(composed.config.loss)), loss_class(loss)
    if chosen != expected:
        remedy = "set arguments of losses under per_loss, or as loss.ClassName.argument=value"
        raise ConfigError(f"{loss} is a {expected}, but {experiment} makes it a {chosen}: {remedy}")
    return composed.config


def changed_keys(job: Job) -> list[str]:
    """The keys in which the job differs from the run in its folder, if there is one."""
    if not run.is_begun(job.folder):
        return []
    return differences(job.config, parse_saved((job.folder / "config.yaml").read_text(), str(job.folder)))


def run_jobs(jobs: Sequence[Job], workers: int, plugins: Sequence[str] = (), overwrite: bool = False) -> None:
    """Run jobs in parallel. Finished runs are reused, unfinished ones resumed, unless they are overwritten."""
    for job in () if overwrite else jobs:
        if changed := changed_keys(job):
            remedy = "choose another --dir, or pass --overwrite"
            raise ConfigError(f"{job.folder} contains a run with another {', '.join(changed)}: {remedy}")
    pending = [job for job in jobs if overwrite or not job.summary]
    print(f"runs: {len(jobs)}, {workers} at a time: {', '.join(dict.fromkeys(job.label for job in jobs))}")
    if reused := len(jobs) - len(pending):
        print(f"{reused} of {len(jobs)} runs are finished and reused; --overwrite runs them again")
    if pending and "ImageFolder" in pending[0].config.dataset:
        print(own_images.outlook(pending[0].config, len(pending), workers))
    for job in pending:
        compute_maps(job.config)
    with tqdm(total=sum(job.config.general.epochs for job in jobs), unit="epoch") as bar:

        def show() -> None:
            bar.update(sum(job.epochs for job in jobs) - bar.n)
            bar.set_postfix(testing=sum(job.epochs == job.config.general.epochs for job in pending))
            for job in pending[:]:
                if summary := job.summary:
                    pending.remove(job)
                    bar.write(f"{job.label}, seed {summary['seed']}: {_score(summary, job.config.evaluation.select)}")
                    sys.stdout.flush()  # into a file, too, scores are written as they come

        in_processes(partial(_run_job, overwrite=overwrite), pending[:], workers, plugins, show)


def _score(summary: dict[str, Any], select: str) -> str:
    """The score that chose the epoch of a run or, if validation classes did not choose, that of the test."""
    score = summary["validation_score"]
    words = f", test {select} {summary['test'][select]:.4f}" if score is None else f" {score:.4f}"
    return f"{summary['selected_by']}{words}, {summary['seconds']:.0f} s"


def _run_job(job: Job, overwrite: bool) -> None:
    if run.is_begun(job.folder) and not overwrite:
        run.resume(job.folder)
    else:
        run.start(job.config, job.folder, overwrite)


def in_processes(
    work: Callable[[Any], None],
    tasks: Sequence[Any],
    workers: int,
    plugins: Sequence[str] = (),
    progress: Callable[[], object] = lambda: None,
) -> None:
    """Call `work` with each task in one of several processes, and `progress` every second.

    An error or Ctrl-C ends everything at once, instead of waiting for running trainings.
    """
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    pool = ProcessPoolExecutor(workers, context, initializer=_prepare_worker, initargs=(plugins,))
    try:
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # workers inherit this: Ctrl-C reaches them, too
        pending = {pool.submit(work, task) for task in tasks}
        signal.signal(signal.SIGINT, handler)
        while pending:
            done, pending = wait(pending, timeout=1.0, return_when=FIRST_COMPLETED)
            for future in done:
                future.result()  # raises the error of the task
            progress()
    except BrokenProcessPool:
        raise ChildProcessError("a worker process ended unexpectedly: is there enough memory?") from None
    except BaseException:
        for process in list(pool._processes.values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _prepare_worker(plugins: Sequence[str]) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if sys.platform == "linux":  # loaders start their workers as outside of a pool: at once, without named semaphores
        multiprocessing.set_start_method("fork", force=True)
    tqdm.set_lock(threading.RLock())  # its own is a semaphore, which a terminated worker would leak
    sys.stdout = sys.stderr = io.StringIO()  # lines and bars of each run: the command has one bar for all
    torch.set_num_threads(1)
    registry.load_plugins(plugins)


def _end_with_parent() -> None:
    """Workers of a killed command would wait for work forever."""
    multiprocessing.parent_process().join()  # type: ignore[union-attr]
    os._exit(1)


def write_results(name: str, jobs: Sequence[Job], folder: Path) -> None:
    """Print the table, and save tables and report in the folder."""
    from ..reports.page import write_report

    rows = tables.summarise([(job.label, job.summary) for job in jobs])
    note = tables.selection_note(rows)
    tables.print_tables(f"{name}, {note}" if note else name, rows)
    write_text(folder / "comparison.md", f"{tables.as_markdown(rows)}\n" + (f"\n{note}\n" if note else ""))
    write_json(folder / "comparison.json", [asdict(row) for row in rows])
    print(f"runs and tables in {folder}")
    print(f"report: {write_report([job.folder for job in jobs], folder / 'report.html')}")
