"""The best settings of a sweep once more, with seeds that had no say in choosing them, and their test metrics."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig

from ...reports.tables import Row
from .. import compare
from ..config import differences, load_saved
from .plan import HARDWARE, Plan
from .search import Result

_FIRST_NEW_SEED = 1000


def reproduce(
    plan: Plan, results: list[Result], seeds: int, folder: Path, workers: int, plugins: Sequence[str] = ()
) -> list[Row]:
    """One row a loss; losses of which no trial ended well have none."""
    jobs = []
    for result in results:
        if result.best is not None:
            jobs += _jobs(plan, result, seeds, folder / result.plan.name / "best")
    return compare.run_jobs(jobs, workers, plugins) if jobs else []


def _jobs(plan: Plan, result: Result, seeds: int, folder: Path) -> list[compare.Job]:
    loss, jobs = result.plan, []
    first = max(_FIRST_NEW_SEED, loss.seed + plan.settings.seeds)
    for seed in range(first, first + seeds):
        target = folder / f"seed-{seed}"
        jobs.append(compare.Job(loss.name, seed, plan.configure(loss, result.best_values, seed, target), target))
    _drop_outdated(folder, jobs[0].config)
    return jobs


def _drop_outdated(folder: Path, config: DictConfig) -> None:
    """Runs of settings that were the best before more trials were made."""
    for old in folder.glob("seed-*/config.yaml"):
        if differences(config, load_saved(old), ("general.seed", *HARDWARE)):
            shutil.rmtree(old.parent)
