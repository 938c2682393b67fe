"""Search the best settings of each loss by validation score, with one Optuna study per loss.

Workers run one trial at a time, `study.optimize(n_trials=1)`, on a storage that all of them share. Optuna's heartbeat
detects trials whose process was killed and queues them again: the same command continues a killed sweep, and several
machines can share one.
"""

import contextlib
import math
import shutil
import statistics
import time
import warnings
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from omegaconf import OmegaConf
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy import event
from tqdm import tqdm

from ..files import write_json, write_text
from ..reports.run_folders import differing
from ..reports.tables import search_markdown
from . import compare, run
from .config import MACHINE, ConfigError
from .folders import experiment_name
from .search_space import LossSearch, decode

_HEARTBEAT_SECONDS, _GRACE_SECONDS = 10, 30  # a trial without a heartbeat for that long is queued again
_WAIT_SECONDS = 2.0  # between looks at a storage where other processes run all remaining trials
_LOCK_SECONDS = 60  # to wait for another process's SQLite transaction
_FIRST_NEW_SEED = 1000
_FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)


class SearchResult(NamedTuple):
    plan: LossSearch
    trials: list[FrozenTrial]  # finished
    ranked: list[FrozenTrial]  # those that were not pruned, the best first; after `run_finals` the finalists
    finals: dict[int, list[float]] | None = None  # number of a finalist -> its scores, one for each seed


@cache
def open_storage(url: str) -> RDBStorage:
    """Optuna's database with heartbeats; the tables are created if there are none."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    is_sqlite = url.startswith("sqlite")
    try:
        storage = RDBStorage(
            url,
            engine_kwargs={"connect_args": {"timeout": _LOCK_SECONDS, "isolation_level": None}} if is_sqlite else None,
            heartbeat_interval=_HEARTBEAT_SECONDS,
            grace_period=_GRACE_SECONDS,
            heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(),
        )
    except Exception as error:  # drivers raise their own types; the URL may contain a password, so it is not shown
        reason = str(error).splitlines()[0]
        raise ConfigError(f"--storage: Optuna cannot open it ({type(error).__name__}: {reason})") from error
    if is_sqlite:  # its default transactions let two processes take the same queued trial
        event.listen(storage.engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    return storage


def open_study(plan: LossSearch, storage: str) -> optuna.Study:
    grid = {key: parameter.values for key, parameter in plan.space.items()}
    median = optuna.pruners.MedianPruner(n_warmup_steps=max(1, plan.base.general.epochs // 3))
    return optuna.create_study(
        storage=open_storage(storage),
        study_name=plan.study,
        direction="maximize",
        load_if_exists=True,
        sampler=optuna.samplers.GridSampler(grid) if plan.section.sampler == "grid" else None,
        pruner=median if plan.section.pruner == "median" else optuna.pruners.NopPruner(),
    )


def _begin(plan: LossSearch, storage: str, overwrite: bool) -> optuna.Study:
    """Open a study, check that it is the same search as before, and queue its first trial or those that failed."""
    if overwrite:
        with contextlib.suppress(KeyError):  # there is no such study
            optuna.delete_study(study_name=plan.study, storage=open_storage(storage))
    study = open_study(plan, storage)
    settings: Any = OmegaConf.to_container(plan.base, resolve=True)
    settings["sweep"] = {"seeds": plan.section.seeds, "space": {key: list(p) for key, p in plan.space.items()}}
    if changed := differing([settings, study.user_attrs.get("settings", settings)], MACHINE):
        remedy = "choose another --dir or --storage, or pass --overwrite"
        raise ConfigError(f"{plan.study} was begun with another {', '.join(changed)}: {remedy}")
    study.set_user_attr("settings", settings)
    trials = study.get_trials(deepcopy=False)
    if plan.start and not trials:
        study.enqueue_trial(plan.start)
    retried = {number for trial in trials for number in RetryHeartbeatStaleTrialCallback.retry_history(trial)}
    for trial in trials:
        if trial.state == TrialState.RUNNING:  # or one that was killed before its first heartbeat would never be stale
            open_storage(storage).record_heartbeat(trial._trial_id)
        if trial.state == TrialState.FAIL and trial.number not in retried:
            RetryHeartbeatStaleTrialCallback()(study, trial)
    return study


def run_searches(
    plans: Sequence[LossSearch], folder: Path, storage: str, overwrite: bool, workers: int, plugins: Sequence[str] = ()
) -> list[SearchResult]:
    """Run all trials that are not finished, the losses in turn."""
    folder.mkdir(parents=True, exist_ok=True)
    pairs = [(plan, _begin(plan, storage, overwrite)) for plan in plans]
    work = partial(_run_trial, folder=folder, storage=storage)
    if finished := sum(len(_result(*pair).trials) for pair in pairs):
        print(f"{finished} trials are finished and reused; --overwrite runs them again")
    with tqdm(total=sum(plan.trials for plan in plans), unit="trial") as bar:

        def missing() -> int:
            bar.update(sum(len(_result(*pair).trials) for pair in pairs) - bar.n)
            return int(bar.total - bar.n)

        while missing():
            left = [_to_start(*pair) for pair in pairs]
            turns = [plan for turn in range(max(left)) for plan, n in zip(plans, left, strict=True) if turn < n]
            compare.in_processes(work, turns, workers, plugins, missing)
            if not turns:  # other processes run the rest, or were killed
                time.sleep(_WAIT_SECONDS)
            for _, study in pairs:
                optuna.storages.fail_stale_trials(study)
    return [_result(*pair) for pair in pairs]


def _result(plan: LossSearch, study: optuna.Study) -> SearchResult:
    trials = study.get_trials(deepcopy=False, states=_FINISHED)[: plan.trials]  # machines may run one too many
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    return SearchResult(plan, trials, sorted(complete, key=lambda trial: float(trial.values[0]), reverse=True))


def _to_start(plan: LossSearch, study: optuna.Study) -> int:
    """The number of trials that are neither finished nor running."""
    return plan.trials - len(study.get_trials(deepcopy=False, states=(*_FINISHED, TrialState.RUNNING)))


def _run_trial(plan: LossSearch, folder: Path, storage: str) -> None:
    """Run one trial in a worker, unless other processes already run all that are missing."""
    study = open_study(plan, storage)
    if _to_start(plan, study) > 0:
        study.optimize(partial(_objective, plan=plan, folder=folder), n_trials=1)


def _objective(trial: Trial, plan: LossSearch, folder: Path) -> float:
    """The median validation score over seeds. Only the first seed may be pruned."""
    if plan.section.sampler == "tpe":  # draws follow from the trial's number, not from the process that runs it
        startup = min(10, max(3, plan.trials // 3))  # trials drawn at random before TPE learns from them
        seed = plan.seeds().start + trial.number
        trial.study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=startup, constant_liar=True)
    params = {key: parameter.suggest(trial, key) for key, parameter in plan.space.items()}
    scores: list[float] = []
    for seed in plan.seeds():
        try:
            scores.append(_train(trial, plan.job(folder, trial.number, params, seed), may_prune=not scores))
        except ConfigError as error:
            raise ConfigError(f"trial {trial.number} of {plan.name} with {params}: {error}") from None
    return statistics.median(scores)


def _train(trial: Trial, job: compare.Job, may_prune: bool) -> float:
    """Train once. A run without a finite score ends the trial, which then counts as pruned."""
    key = f"validation_{job.config.evaluation.select}"

    def should_stop(row: dict[str, Any]) -> bool:
        if not may_prune or key not in row or row["epoch"] == job.config.general.epochs:
            return False
        trial.report(row[key], row["epoch"])
        return trial.should_prune()

    try:
        summary = run.start(job.config, job.folder, True, should_stop)
    except FloatingPointError as error:
        summary = {"validation_score": None, "status": str(error)}
    if summary["validation_score"] is None:
        trial.set_user_attr("error", f"no finite {key}: {summary['status']}")
    if summary["validation_score"] is None or summary["status"] == "pruned":
        raise optuna.TrialPruned
    return float(summary["validation_score"])


def run_finals(result: SearchResult, folder: Path, workers: int, plugins: Sequence[str] = ()) -> SearchResult:
    """Run the best trials of a loss with more seeds, and choose among them by the mean over all seeds."""
    plan, finalists = result.plan, result.ranked[: result.plan.section.finalists]
    seeds = range(plan.seeds().stop, plan.seeds().stop + plan.section.finalist_seeds)
    if not finalists or not seeds:
        return result
    jobs = {t.number: [plan.job(folder, t.number, t.params, seed) for seed in seeds] for t in finalists}
    compare.in_processes(_run_final, [job for row in jobs.values() for job in row], workers, plugins)
    scores = {trial.number: [float(trial.values[0]), *map(_score, jobs[trial.number])] for trial in finalists}
    ranked = sorted(finalists, key=lambda trial: statistics.fmean(scores[trial.number]), reverse=True)
    return result._replace(ranked=ranked, finals=scores)


def _run_final(job: compare.Job) -> None:
    """Train without test metrics, unless that is done already."""
    if compare.changed_keys(job) or not job.summary:
        with contextlib.suppress(FloatingPointError):
            run.start(job.config, job.folder, True, lambda row: False)


def _score(job: compare.Job) -> float:
    """The validation score of a finished run; −∞ if training diverged."""
    score = job.summary.get("validation_score")
    return -math.inf if score is None else float(score)


def reproduce(
    results: Sequence[SearchResult], seeds: int, folder: Path, workers: int, plugins: Sequence[str] = ()
) -> None:
    """Train the best settings again with seeds that were not used to choose them; save and print their test metrics."""
    jobs = []
    for plan, best in ((result.plan, best) for result in results for best in result.ranked[:1]):
        first = max(_FIRST_NEW_SEED, plan.seeds().stop)
        for seed in range(first, first + seeds):
            job = plan.job(folder, "best", best.params | plan.section.reproduce, seed)
            if compare.changed_keys(job):  # other settings were the best before there were more trials
                shutil.rmtree(job.folder.parent)
            jobs.append(job)
    if jobs:
        compare.run_jobs(jobs, workers, plugins)
        compare.write_results(f"{experiment_name(plan.experiment)}, best settings", jobs, folder)


def write_results(results: Sequence[SearchResult], folder: Path) -> None:
    """Save sweep.json and sweep.md, and print the table."""
    plan, losses = results[0].plan, [_summary(result) for result in results]
    name, score = experiment_name(plan.experiment), f"validation_{plan.base.evaluation.select}"
    search = {"experiment": name, "sampler": plan.section.sampler, "seeds_per_trial": plan.section.seeds}
    write_json(folder / "sweep.json", search | {"score": score, "losses": losses})
    table = search_markdown(losses)
    write_text(folder / "sweep.md", table + "\n")
    print(f"{name}: {score}\n{table}\ntrials and table in {folder}")


def _summary(result: SearchResult) -> dict[str, Any]:
    best = result.ranked[0] if result.ranked else None
    return {
        "loss": result.plan.name,
        "finished": len(result.trials),
        "best": best and {"trial": best.number, "score": best.values[0], "values": decode(best.params)},
        "finals": result.finals or {},
        "trials": [
            {
                "state": "diverged" if "error" in trial.user_attrs else trial.state.name.lower(),
                "score": trial.values[0] if trial.values else None,  # of a pruned trial the last one
                "values": decode(trial.params),
            }
            for trial in result.trials
        ],
    }
