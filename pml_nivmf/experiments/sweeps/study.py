"""One loss's Optuna study, as numbered slots: a sweep of N trials fills the slots 0 … N−1, each exactly once.

A trial that never finished (its process was killed) fails and its slot is given out again with the same parameters, so
that a sweep may be killed and continued, or shared by machines, and always ends with N finished trials. Samplers are
seeded by slot: a sweep with one worker is the same whether it was killed or not.
"""

import contextlib
import json
import time
import uuid
import warnings
import zlib
from collections.abc import Iterator
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from ..errors import ConfigError
from .owner import Owner
from .space import Space

_SLOT, _GIVEN, _OWNER, _CLAIM, _OUTCOME = "slot", "given", "owner", "claim", "outcome"  # user attributes of trials
_SETTINGS = "settings"  # user attribute of the study
_FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)
_LOCK_SECONDS = 60  # how long to wait for another process's SQLite transaction
_STARTUP_TRIALS = 5  # complete ones before the first is pruned
_LEAST_BLIND, _MOST_BLIND = 3, 10  # trials drawn blindly before TPE learns from them: a third, within these


def open_storage(url: str) -> optuna.storages.BaseStorage:
    """Optuna's storage for an address; SQLite waits for other processes to finish their transactions."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        if not url.startswith("sqlite"):
            return optuna.storages.get_storage(url)
        return optuna.storages.RDBStorage(url, engine_kwargs={"connect_args": {"timeout": _LOCK_SECONDS}})
    except Exception as error:  # drivers raise types of their own; the address may hold a password, so it is not shown
        reason = str(error).splitlines()[0]
        raise ConfigError(f"--storage: Optuna cannot open it ({type(error).__name__}: {reason})") from error


def delete_studies(storage: optuna.storages.BaseStorage, names: list[str]) -> None:
    existing = optuna.get_all_study_names(storage)
    for name in names:
        if name in existing:
            optuna.delete_study(study_name=name, storage=storage)


def make_pruner(name: str, epochs: int) -> optuna.pruners.BasePruner:
    """Median: a trial stops where its best score is below the median of the others at that epoch, after a third."""
    if name == "none":
        return optuna.pruners.NopPruner()
    return optuna.pruners.MedianPruner(n_startup_trials=_STARTUP_TRIALS, n_warmup_steps=max(1, epochs // 3))


class LossStudy:
    """The study of one loss; `fixed[slot]` are parameters given beforehand (a grid's, or the first trial's)."""

    def __init__(
        self,
        storage: optuna.storages.BaseStorage,
        name: str,
        space: Space,
        count: int,
        fixed: dict[int, dict[str, Any]],
        sampler: str,
        seed: int,
        pruner: optuna.pruners.BasePruner,
        owner: Owner,
    ):
        self.count, self._space, self._fixed, self._owner = count, space, fixed, owner
        self._study = optuna.create_study(
            storage=storage,
            study_name=name,
            direction="maximize",
            load_if_exists=True,
            sampler=_SlotSampler(sampler, f"{seed}/{name}", blind=min(_MOST_BLIND, max(_LEAST_BLIND, count // 3))),
            pruner=pruner,
        )

    def check_settings(self, settings: dict[str, Any], remedy: str) -> None:
        """A study may be continued only as what it was begun."""
        saved = self._study.user_attrs.get(_SETTINGS)
        if saved is None:
            self._study.set_user_attr(_SETTINGS, json.dumps(settings))
            return
        old = json.loads(saved)
        changed = [key for key in sorted(settings.keys() | old.keys()) if settings.get(key) != old.get(key)]
        if changed:
            raise ConfigError(f"{self._study.study_name} was begun with another {', '.join(changed)}: {remedy}")

    # Slots ------------------------------------------------------------------------------------------------------

    def fail_dead(self) -> None:
        """Free the slots of trials whose process is dead."""
        for trial in self._trials():
            is_ours = trial.state == TrialState.RUNNING and _OWNER in trial.user_attrs
            if is_ours and self._owner.is_dead(*trial.user_attrs[_OWNER]):
                with self._ignoring_late(trial.number):
                    self._study.tell(trial.number, state=TrialState.FAIL)

    def finished(self) -> list[FrozenTrial]:
        """Complete and pruned trials, by slot."""
        mine = [t for t in self._trials() if t.state in _FINISHED and t.user_attrs.get(_SLOT, self.count) < self.count]
        return sorted(mine, key=slot_of)

    def _free_slot(self) -> int | None:
        held = _holders(self._trials())
        return next((slot for slot in range(self.count) if slot not in held), None)

    def _claim(self, slot: int) -> FrozenTrial | None:
        """Begin a trial for the slot; None if another machine was faster.

        Trials are not put into Optuna's queue: with SQLite, two processes may draw the same one.
        """
        before = [
            t for t in self._trials() if t.user_attrs.get(_SLOT) == slot and t.params.keys() == self._space.keys()
        ]
        attributes = {
            _SLOT: slot,
            _GIVEN: before[-1].params if before else self._fixed.get(slot, {}),
            _OWNER: [self._owner.name, time.time()],
            _CLAIM: uuid.uuid4().hex,
        }
        self._study.add_trial(optuna.trial.create_trial(state=TrialState.RUNNING, user_attrs=attributes))
        trials = self._trials()
        claimed = next(trial for trial in trials if trial.user_attrs.get(_CLAIM) == attributes[_CLAIM])
        if _holders(trials)[slot] == claimed.number:
            return claimed
        self._study.tell(claimed.number, state=TrialState.FAIL)
        return None

    def _trials(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)

    # Trials -----------------------------------------------------------------------------------------------------

    def ask(self) -> Trial | None:
        """The next trial, with its parameters drawn; None if every slot is taken."""
        while (slot := self._free_slot()) is not None:
            claimed = self._claim(slot)
            if claimed is not None:
                trial = Trial(self._study, claimed._trial_id)
                for parameter in self._space.values():
                    parameter.suggest(trial)
                return trial
        return None

    def keep_alive(self, trial: Trial) -> None:
        with self._ignoring_late(trial.number):
            trial.set_user_attr(_OWNER, [self._owner.name, time.time()])

    def report(self, trial: Trial, epoch: int, score: float) -> bool:
        """Whether to stop."""
        if isinstance(self._study.pruner, optuna.pruners.NopPruner):
            return False
        with self._ignoring_late(trial.number):
            trial.report(score, epoch)
            return trial.should_prune()
        return True

    def finish(self, trial: Trial, score: float | None, seconds: float, error: str | None) -> None:
        """Without a score the trial counts as pruned: finished, and worse than all that have one."""
        with self._ignoring_late(trial.number):
            trial.set_user_attr(_OUTCOME, {"seconds": seconds, "error": error})
            self._study.tell(trial, score, TrialState.PRUNED if score is None else TrialState.COMPLETE)

    def give_up(self, trial: Trial) -> None:
        """The slot is free again."""
        with self._ignoring_late(trial.number):
            self._study.tell(trial, state=TrialState.FAIL)

    @contextlib.contextmanager
    def _ignoring_late(self, number: int) -> Iterator[None]:
        """Another machine that took this one for dead may have failed the trial already: then its slot is not ours."""
        try:
            yield
        except (ValueError, RuntimeError, optuna.exceptions.OptunaError) as error:
            if not self._study.trials[number].state.is_finished():
                raise
            warnings.warn(f"trial {number} had been given up before it was done: {error}", stacklevel=3)


def _holders(trials: list[FrozenTrial]) -> dict[int, int]:
    """Slot -> number of the trial that holds it: of two, as two machines may make, the first."""
    holding = [t for t in trials if t.state in (*_FINISHED, TrialState.RUNNING) and _SLOT in t.user_attrs]
    return {trial.user_attrs[_SLOT]: trial.number for trial in reversed(holding)}


def best_of(trials: list[FrozenTrial]) -> FrozenTrial | None:
    """The complete trial with the highest score, the first of equals."""
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    return max(complete, key=lambda trial: float(trial.values[0]), default=None)


def seconds_of(trial: FrozenTrial) -> float:
    return float(trial.user_attrs[_OUTCOME]["seconds"])


def status_of(trial: FrozenTrial) -> str:
    """complete, pruned, or diverged."""
    return "diverged" if trial.user_attrs[_OUTCOME]["error"] is not None else str(trial.state.name).lower()


def slot_of(trial: FrozenTrial) -> int:
    return int(trial.user_attrs[_SLOT])


class _SlotSampler(BaseSampler):
    """Optuna's sampler, made anew for every trial with a seed that follows from the slot; given values are kept."""

    def __init__(self, kind: str, name: str, blind: int):
        self._kind, self._name, self._blind = kind, name, blind
        self._sampler: BaseSampler = RandomSampler(seed=0)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        seed = zlib.crc32(f"{self._name}/{trial.user_attrs[_SLOT]}".encode())
        self._sampler = _make_sampler(self._kind, seed, self._blind)
        self._sampler.before_trial(study, trial)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._sampler.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        given = {key: value for key, value in trial.user_attrs[_GIVEN].items() if key in search_space}
        return self._sampler.sample_relative(study, trial, search_space) | given

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        if param_name in trial.user_attrs[_GIVEN]:
            return trial.user_attrs[_GIVEN][param_name]
        return self._sampler.sample_independent(study, trial, param_name, param_distribution)


def _make_sampler(kind: str, seed: int, blind: int) -> BaseSampler:
    if kind == "grid":  # whose parameters are all fixed beforehand
        return RandomSampler(seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return TPESampler(seed=seed, n_startup_trials=blind, constant_liar=True)
