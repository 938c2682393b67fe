"""A search for each loss's best settings by validation score, which goes on where it was killed."""

import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial, Trial
from tqdm import tqdm

from ..interrupts import check
from .owner import Owner
from .plan import LossPlan, Plan
from .study import LossStudy, best_of, delete_studies, make_pruner, open_storage
from .workers import Broken, Epoch, Finished, Pool, Task

_POLL_SECONDS = 1.0
_SIGN_SECONDS = 30.0  # between signs of life and looks at other machines
_WAIT_SECONDS = 5.0  # the same, where other machines have all that is left
_SHOWN_SCORES = 4


@dataclass
class Result:
    """What came out for one loss; `best` is the complete trial with the highest validation score."""

    plan: LossPlan
    trials: list[FrozenTrial]
    best: FrozenTrial | None
    best_values: dict[str, Any] = field(default_factory=dict)


def run(plan: Plan, folder: Path, storage_url: str, workers: int, plugins: Sequence[str] = ()) -> list[Result]:
    """Run or continue all trials; finished ones are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    storage = open_storage(storage_url)
    with Owner(folder / "owners") as owner:
        studies = [_open_study(plan, loss, storage, owner) for loss in plan.losses]
        for study in studies:
            study.fail_dead()
        left = sum(study.count - len(study.finished()) for study in studies)
        if left:
            with Pool(min(workers, left), plugins) as pool:
                _Search(plan, folder, studies, pool).run()
        return [_result(loss, study) for loss, study in zip(plan.losses, studies, strict=True)]


def forget(plan: Plan, folder: Path, storage_url: str) -> None:
    """Delete the studies of the planned losses and the folders of their runs."""
    folder.mkdir(parents=True, exist_ok=True)
    delete_studies(open_storage(storage_url), [loss.study for loss in plan.losses])
    for loss in plan.losses:
        for old in (*(folder / loss.name).glob("trial-*"), folder / loss.name / "best"):
            shutil.rmtree(old, ignore_errors=True)


def _open_study(plan: Plan, loss: LossPlan, storage: Any, owner: Owner) -> LossStudy:
    pruner = make_pruner(plan.settings.pruner, loss.base.config.general.epochs)
    study = LossStudy(
        storage, loss.study, loss.space, loss.count, loss.fixed, plan.settings.sampler, loss.seed, pruner, owner
    )
    study.check_settings(plan.identity(loss), "choose another --dir or --storage, or pass --overwrite")
    return study


def _result(loss: LossPlan, study: LossStudy) -> Result:
    trials = study.finished()
    best = best_of(trials)
    return Result(loss, trials, best, {} if best is None else loss.values(best.params))


class _Search:
    """Hands trials to workers as they become free, in turn over the losses, and takes in what they say."""

    def __init__(self, plan: Plan, folder: Path, studies: list[LossStudy], pool: Pool):
        self._plan, self._folder, self._studies, self._pool = plan, folder, studies, pool
        self._running: dict[int, tuple[int, Trial]] = {}  # worker -> loss and trial
        self._finished = [study.finished() for study in studies]
        self._last_sign = time.monotonic()

    def run(self) -> None:
        total = sum(study.count for study in self._studies)
        with tqdm(total=total, unit="trial", file=sys.stderr) as bar:
            try:
                while self._show(bar) < total:
                    check()
                    self._hand_out()
                    for worker, message in self._pool.messages(_POLL_SECONDS):
                        self._take(worker, message)
                    if time.monotonic() > self._last_sign + (_SIGN_SECONDS if self._running else _WAIT_SECONDS):
                        self._meet_others()
            finally:
                for index, trial in self._running.values():  # another start, or machine, shall do them again
                    self._studies[index].give_up(trial)

    def _show(self, bar: Any) -> int:
        """Bring the bar up to date; returns how many trials are finished."""
        count = sum(map(len, self._finished))
        if count > bar.n:
            best = zip(map(best_of, self._finished), self._plan.losses, strict=True)
            scores = sorted(((trial.values[0], loss.name) for trial, loss in best if trial), reverse=True)
            shown = ", ".join(f"{name} {score:.4f}" for score, name in scores[:_SHOWN_SCORES])
            bar.set_postfix_str(f"best {shown}" if shown else "", refresh=False)
            bar.update(count - bar.n)
        return count

    def _hand_out(self) -> None:
        """The loss that is furthest behind comes first, so that at any time all have had as many trials."""
        for worker in self._pool.idle():
            for index in sorted(range(len(self._studies)), key=self._share_begun):
                trial = self._studies[index].ask() if self._share_begun(index) < 1 else None
                if trial is not None:
                    self._running[worker] = (index, trial)
                    self._pool.start(worker, self._task(index, trial))
                    break

    def _share_begun(self, index: int) -> float:
        running = sum(index == other for other, _ in self._running.values())
        return (len(self._finished[index]) + running) / self._studies[index].count

    def _task(self, index: int, trial: Trial) -> Task:
        loss, task = self._plan.losses[index], []
        for seed in range(loss.seed, loss.seed + self._plan.settings.seeds):
            folder = self._folder / loss.name / f"trial-{trial.number:04d}" / f"seed-{seed}"
            task.append((self._plan.configure(loss, loss.values(trial.params), seed, folder), folder))
        return task

    def _take(self, worker: int, message: Epoch | Finished | Broken) -> None:
        index, trial = self._running[worker]
        study = self._studies[index]
        if isinstance(message, Epoch):
            self._pool.answer(worker, study.report(trial, message.number, message.score))
        elif isinstance(message, Finished):
            del self._running[worker]
            study.finish(trial, message.score, message.seconds, message.error)
            self._finished[index] = study.finished()
        else:
            where = f"trial {trial.number} of {self._plan.losses[index].name} with {trial.params}"
            raise message.kind(f"{where}: {message.message}")

    def _meet_others(self) -> None:
        """Tell other machines that this one lives, take over from those that do not, see what they have done."""
        self._last_sign = time.monotonic()
        for index, trial in self._running.values():
            self._studies[index].keep_alive(trial)
        for study in self._studies:
            study.fail_dead()
        self._finished = [study.finished() for study in self._studies]
