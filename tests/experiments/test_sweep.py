"""Sweeps: what is searched, every trial exactly once whatever is killed, and no say for the test set."""

import contextlib
import json
import math
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import optuna
import pytest
import torch
from matplotlib.image import imread
from omegaconf import OmegaConf
from optuna.trial import TrialState
from scipy import stats

from pml_nivmf import cli
from pml_nivmf.experiments import dataset_cache, registry, run
from pml_nivmf.experiments.config import compose
from pml_nivmf.experiments.errors import ConfigError
from pml_nivmf.experiments.sweeps import owner as sweep_owner
from pml_nivmf.experiments.sweeps import plan as sweep_plan
from pml_nivmf.experiments.sweeps import search as sweep
from pml_nivmf.experiments.sweeps import workers as sweep_workers
from pml_nivmf.experiments.sweeps.study import LossStudy, make_pruner, open_storage

from .processes import last_words

ROOT = Path(__file__).parents[2]
SWEEP = """
sweep:
  trials: 6
  pruner: none
  space:
    optimizers.proxy_lr: {log_uniform: [0.001, 1.0]}
    general.epochs: {int: [1, 3]}
    schedule: {choice: [default, cosine]}
    loss.ProxyAnchorLoss.alpha: {uniform: [8, 64]}
"""


@pytest.fixture(scope="module")
def npz(tmp_path_factory):
    """Classes that differ in 4 of 24 directions: a head can learn them, and how well depends on the settings."""
    rng = np.random.default_rng(0)
    means = np.concatenate([rng.normal(size=(24, 4)), np.zeros((24, 20))], axis=1)
    labels = np.repeat(np.arange(24), 12)
    items = means[labels] + 0.6 * rng.normal(size=(len(labels), 24))
    train = labels < 16
    path = tmp_path_factory.mktemp("features") / "features.npz"
    np.savez(path, x_train=items[train], y_train=labels[train], x_test=items[~train], y_test=labels[~train])
    return path


@pytest.fixture
def write(npz, tmp_path):
    """An experiment file with a sweep section of one's own."""

    def write(sweep_section: str = SWEEP, name: str = "tiny") -> str:
        path = tmp_path / f"{name}.yaml"
        path.write_text(
            f"""
description: tiny
groups: {{model: features}}
compare: [proxy_anchor, el_vmf]
dataset: {{FeatureArrays: {{npz: {npz}}}}}
model: {{embedding_size: 8}}
general: {{epochs: 3, batch_size: 16, device: cpu}}
{sweep_section}"""
        )
        return str(path)

    return write


class ThreadPool(sweep_workers.Pool):
    """The pool with threads for processes, which start at once."""

    def __init__(self, count, plugins):
        self._connections, self._processes, self._busy = [], [], set()
        for _ in range(count):
            ours, theirs = multiprocessing.Pipe()
            self._connections.append(ours)
            self._processes.append(threading.Thread(target=self._serve, args=(theirs,), daemon=True))
            self._processes[-1].start()

    @staticmethod
    def _serve(connection):
        while True:
            try:
                connection.send(sweep_workers._run_task(connection.recv(), connection))
            except (EOFError, OSError, SystemExit):
                return

    def __exit__(self, *_):
        for connection in self._connections:
            connection.close()
        for thread in self._processes:
            thread.join(20)


@pytest.fixture
def threads(monkeypatch):
    monkeypatch.setattr(sweep, "Pool", ThreadPool)
    # Threads have one stderr: what one of them turns away, another would put back, or not.
    monkeypatch.setattr(contextlib, "redirect_stderr", lambda target: contextlib.nullcontext())


class FakeConnection:
    """Never stops a trial."""

    def send(self, message):
        pass

    def recv(self):
        return False


class Trainings:
    """Stands for `run.start`: a score that follows from the configuration, and a list of what was asked for."""

    def __init__(self, score=lambda config: -abs(math.log10(config.optimizers.proxy_lr) + 1)):
        self.configs, self._score = [], score

    def __call__(self, config, folder, overwrite, trial):
        self.configs.append(config)
        status, score = "finished", self._score(config)
        for epoch in range(1, config.general.epochs + 1):
            if trial({"epoch": epoch, f"validation_{config.evaluation.select}": score}):
                status = "pruned"
                break
        return {"status": status, "validation_score": score, "seconds": 1.0}


@pytest.fixture
def trainings(monkeypatch, threads):
    trainings = Trainings()
    monkeypatch.setattr(sweep_workers.run, "start", lambda *arguments: trainings(*arguments))
    return trainings


def search(experiment, folder, losses=("proxy_anchor",), trials=None, workers=1, storage=None):
    plan = sweep_plan.make_plan(experiment, losses, [], trials)
    return sweep.run(plan, folder, storage or f"sqlite:///{folder / 'study.db'}", workers)


def found(results):
    return [(trial.state.name, trial.params, trial.value) for result in results for trial in result.trials]


# What is searched -----------------------------------------------------------------------------------------------


def test_each_loss_has_its_space(write):
    section = (
        SWEEP
        + """
  losses:
    el_vmf:
      general.epochs: null
      optimizers.proxy_lr: {uniform: [0.1, 0.2]}
      loss.VMFProxyLoss.temperature: {choice: [1, 0.5]}
"""
    )
    anchor, vmf = sweep_plan.make_plan(write(section), [], []).losses
    assert list(anchor.space) == [
        "optimizers.proxy_lr",
        "general.epochs",
        "schedule",
        "loss.ProxyAnchorLoss.alpha",
    ]
    assert {key: str(parameter) for key, parameter in vmf.space.items()} == {
        "optimizers.proxy_lr": "uniform [0.1, 0.2]",
        "schedule": 'choice ["default", "cosine"]',
        "loss.VMFProxyLoss.temperature": "choice [1, 0.5]",
    }
    assert (anchor.study, anchor.count) == ("tiny/proxy_anchor", 6)


def test_values_reach_the_configuration(write, tmp_path, trainings):
    section = SWEEP.replace("[default, cosine]", "[default, cosine, [cosine, early_stopping]]")
    results = search(write(section), tmp_path / "sweep", trials=12)
    assert len(trainings.configs) == 12
    for config, trial in zip(trainings.configs, results[0].trials, strict=True):
        assert config.optimizers.proxy_lr == trial.params["optimizers.proxy_lr"]
        assert config.general.epochs == trial.params["general.epochs"]
        assert config.loss.ProxyAnchorLoss.alpha == trial.params["loss.ProxyAnchorLoss.alpha"]
        assert bool(config.schedule.scheduler) == ("cosine" in trial.params["schedule"])
        assert (config.schedule.patience is not None) == ("early_stopping" in trial.params["schedule"])
        assert config.general.threads == 1
    rates = [config.optimizers.proxy_lr for config in trainings.configs]
    assert min(rates) >= 0.001
    assert max(rates) <= 1.0
    assert {config.general.epochs for config in trainings.configs} == {1, 2, 3}
    best = results[0].best_values
    assert best["optimizers.proxy_lr"] == min(rates, key=lambda rate: abs(math.log10(rate) + 1))


def test_the_first_trial_may_be_given(write, tmp_path, trainings):
    start = """
  start: {optimizers.proxy_lr: 0.25, loss.ProxyAnchorLoss.alpha: 9}
  starts: {el_vmf: {schedule: cosine}}
"""
    results = search(write(SWEEP + start), tmp_path / "sweep", ["proxy_anchor", "el_vmf"], trials=2)
    first = [result.trials[0].params for result in results]
    assert (first[0]["optimizers.proxy_lr"], first[0]["loss.ProxyAnchorLoss.alpha"]) == (0.25, 9)
    assert (first[1]["optimizers.proxy_lr"], first[1]["schedule"]) == (0.25, "cosine")
    assert results[0].trials[1].params["optimizers.proxy_lr"] != 0.25


GRID = """
sweep:
  sampler: grid
  space:
    optimizers.proxy_lr: {choice: [0.01, 0.1, 1]}
    loss.ProxyAnchorLoss.alpha: {choice: [16, 32]}
    schedule.scheduler: {choice: [{}, {CosineAnnealingLR: {T_max: 3}}]}
"""


def test_grid_runs_every_combination_once(write, tmp_path, trainings):
    (result,) = search(write(GRID), tmp_path / "sweep", workers=2)
    seen = sorted(
        (c.optimizers.proxy_lr, c.loss.ProxyAnchorLoss.alpha, len(c.schedule.scheduler)) for c in trainings.configs
    )
    assert seen == [(lr, alpha, n) for lr in (0.01, 0.1, 1) for alpha in (16, 32) for n in (0, 1)]
    assert result.best_values["optimizers.proxy_lr"] == 0.1


def test_several_seeds_count_by_their_median(write, tmp_path, trainings):
    trainings._score = lambda config: [0.9, 0.1, 0.2][config.general.seed - 5]
    plan = sweep_plan.make_plan(write(SWEEP + "\n  seeds: 3\n"), ["proxy_anchor"], ["general.seed=5"], 2)
    (result,) = sweep.run(plan, tmp_path / "sweep", f"sqlite:///{tmp_path / 'study.db'}", 1)
    assert [trial.value for trial in result.trials] == [0.2, 0.2]
    assert [config.general.seed for config in trainings.configs] == [5, 6, 7, 5, 6, 7]
    assert Path(trainings.configs[2].general.run_dir) == tmp_path / "sweep/proxy_anchor/trial-0000/seed-7"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("trials: 6", "trails: 6", "unknown key 'sweep.trails': did you mean 'trials'"),
        ("trials: 6", "trials: 0", "sweep.trials must be an integer of at least 1, got 0"),
        ("trials: 6", "seeds: 1.5", "sweep.seeds must be an integer"),
        ("trials: 6", "sampler: random", "sweep.sampler must be one of tpe, grid, got 'random'"),
        ("pruner: none", "pruner: hyperband", "sweep.pruner must be one of median, none, got 'hyperband'"),
        ("trials: 6", "sampler: grid", "optimizers.proxy_lr: a grid takes only choice, got log_uniform"),
        ("trials: 6", "{sampler: grid}", "is not YAML"),
        ("{log_uniform: [0.001, 1.0]}", "{log_unifrom: [0.001, 1.0]}", "did you mean 'log_uniform'"),
        ("{log_uniform: [0.001, 1.0]}", "{log_uniform: [0, 1.0]}", "log_uniform wants positive ends"),
        ("{log_uniform: [0.001, 1.0]}", "{uniform: [1, 1]}", "uniform wants low < high, got [1, 1]"),
        ("{log_uniform: [0.001, 1.0]}", "{uniform: [1]}", "uniform wants two numbers, [low, high], got [1]"),
        ("{log_uniform: [0.001, 1.0]}", "{uniform: [0, .inf]}", "uniform wants two numbers"),
        ("{log_uniform: [0.001, 1.0]}", "[0.001, 1.0]", "optimizers.proxy_lr must be one of {choice|log_uniform|"),
        ("{log_uniform: [0.001, 1.0]}", "null", "optimizers.proxy_lr must be one of {choice|log_uniform|"),
        ("{int: [1, 3]}", "{int: [1.5, 3]}", "int wants two integers"),
        ("{int: [1, 3]}", "{int: [-1, 3]}", "general.epochs must be at least 1, got -1"),
        ("[default, cosine]", "[]", "schedule: choice is empty"),
        ("[default, cosine]", "[default, default]", "choice holds 'default' twice"),
        ("[default, cosine]", "[default, cosin]", "unknown schedule 'cosin': did you mean 'cosine'"),
        ("optimizers.proxy_lr", "optimizers.proxi_lr", "'optimizers.proxi_lr': did you mean 'proxy_lr'"),
        ("ProxyAnchorLoss.alpha", "ProxyAnchorLoss.alfa", "has no argument 'alfa': did you mean 'alpha'"),
        (
            "ProxyAnchorLoss.alpha",
            "ProxyAnchorLos.alpha",
            "unknown loss 'ProxyAnchorLos': did you mean 'ProxyAnchorLoss'",
        ),
        ("loss.ProxyAnchorLoss.alpha: {uniform: [8, 64]}", "loss: {choice: [cos, l2]}", "list losses under compare"),
        ("  trials: 6", "  losses: {el_vfm: {}}", "sweep.losses: unknown loss 'el_vfm': did you mean 'el_vmf'"),
        ("  trials: 6", "  losses: {el_vmf: {x.y: null}}", "sweep.losses.el_vmf: cannot leave out 'x.y'"),
        (
            "  trials: 6",
            "  losses: {cos: {general.epochs: {int: [3, 2]}}}",
            "sweep.losses.cos: general.epochs: int wants",
        ),
        ("  trials: 6", "  start: {general.epoch: 3}", "sweep.start: 'general.epoch' is not searched: did you mean"),
        ("  trials: 6", "  start: {general.epochs: 9}", "general.epochs: 9 is not in int [1, 3]"),
        ("  trials: 6", "  starts: {cos: 3}", "sweep.starts.cos must be a mapping, got 3"),
        ("  trials: 6", "  starts: {el_vmf: {a.b: 3}}", "sweep.starts.el_vmf: 'a.b' is not searched"),
        ("  space:", "  spaces:", "unknown key 'sweep.spaces': did you mean 'space'"),
    ],
)
def test_wrong_sections_are_refused_before_any_training(write, tmp_path, capsys, old, new, message):
    assert old in SWEEP
    path = write(SWEEP.replace(old, new))
    assert cli.main(["sweep", path, "--dir", str(tmp_path / "sweep")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert path in error
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize(
    ("section", "arguments", "message"),
    [
        ("", [], "has no sweep section"),
        ("sweep: 3", [], "sweep must be a mapping with a space, got 3"),
        ("sweep: {space: {}}", [], "sweep has no parameter for proxy_anchor"),
        (SWEEP, ["--losses", "el_vfm"], "unknown loss 'el_vfm': did you mean 'el_vmf'"),
        (SWEEP, ["--losses", "cos,cos"], "two losses go by one name: cos, cos"),
        (SWEEP, ["--trials", "0"], "--trials must be an integer of at least 1, got 0"),
        (SWEEP, ["--reproduce-best", "0"], "--reproduce-best must be an integer of at least 1"),
        (SWEEP, ["optimizers.proxy_lr=1"], "command line: optimizers.proxy_lr is set by the sweep"),
        (SWEEP, ["general.run_dir=x"], "command line: general.run_dir is set by the sweep"),
        (SWEEP, ["general.epochz=1"], "command line: unknown key 'general.epochz': did you mean 'epochs'"),
        (SWEEP, ["--storage", "nonsense"], "--storage: Optuna cannot open it"),
        (GRID, ["--losses", "proxy_anchor", "--trials", "3"], "--trials: a grid runs every combination"),
    ],
)
def test_wrong_arguments_are_refused(write, tmp_path, capsys, section, arguments, message):
    assert cli.main(["sweep", write(section), *arguments, "--dir", str(tmp_path / "sweep")]) == 2
    assert message in capsys.readouterr().err


def test_dry_run_prints_studies_spaces_and_runs(write, tmp_path, capsys):
    assert cli.main(["sweep", write(SWEEP + "\n  seeds: 2\n"), "--dry-run", "--dir", str(tmp_path / "sweep")]) == 0
    shown = capsys.readouterr().out
    assert "tiny/proxy_anchor: 6 trials, 12 runs" in shown
    assert "log_uniform [0.001, 1.0]" in shown
    assert "24 runs in all" in shown
    assert not (tmp_path / "sweep").exists()


# Trials ---------------------------------------------------------------------------------------------------------


def test_a_trial_is_cheap_and_knows_no_test_metrics(write, tmp_path):
    config = compose(write(), ["loss=proxy_anchor"]).config
    whole, folder = run.start(config, tmp_path / "whole"), tmp_path / "trial"
    rows = []
    summary = run.start(config, folder, trial=lambda row: bool(rows.append(row)))
    assert summary["validation_score"] == whole["validation_score"]
    assert "test" not in summary
    assert sorted(path.name for path in folder.iterdir() if path.name != ".lock") == [
        "config.yaml",
        "environment.json",
        "history.json",
        "summary.json",
    ]
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert not [key for row in rows for key in row if "test" in key]
    assert json.loads((folder / "history.json").read_text()) == rows
    pruned = run.start(config, tmp_path / "pruned", trial=lambda row: row["epoch"] == 2)
    assert (pruned["status"], pruned["epochs"]) == ("pruned", 2)
    assert json.loads((tmp_path / "pruned" / "summary.json").read_text()) == pruned


def test_workers_read_data_once_and_find_the_same(write, tmp_path, monkeypatch):
    config = compose(write(), ["loss=el_vmf"]).config
    without = [sweep_workers._run_task([(config, tmp_path / "run")], FakeConnection()).score for _ in range(2)]
    monkeypatch.setattr(dataset_cache, "_kept", {})
    built, factory = [], registry._KINDS["dataset"]["FeatureArrays"]
    monkeypatch.setitem(registry._KINDS["dataset"], "FeatureArrays", lambda npz: built.append(npz) or factory(npz))
    kept = [sweep_workers._run_task([(config, tmp_path / "run")], FakeConnection()).score for _ in range(2)]
    assert without == kept
    assert len(built) == 1

    def draws(npz):
        torch.rand(1)
        return built.append(npz) or factory(npz)

    monkeypatch.setattr(dataset_cache, "_kept", {})
    monkeypatch.setitem(registry._KINDS["dataset"], "FeatureArrays", draws)
    for _ in range(2):
        sweep_workers._run_task([(config, tmp_path / "run")], FakeConnection())
    assert len(built) == 1 + 2, "data that depend on chance are built anew"


def test_diverged_trials_count_and_the_sweep_goes_on(write, tmp_path, trainings):
    def score(config):
        if config.optimizers.proxy_lr > 0.03:
            raise FloatingPointError("the loss is nan")
        return 0.5

    trainings._score = score
    (result,) = search(write(), tmp_path / "sweep", trials=8)
    diverged = [trial for trial in result.trials if trial.params["optimizers.proxy_lr"] > 0.03]
    assert len(result.trials) == len(trainings.configs) == 8
    assert 0 < len(diverged) < 8
    assert {trial.state for trial in diverged} == {TrialState.PRUNED}
    assert result.best.params["optimizers.proxy_lr"] <= 0.03
    folder = tmp_path / "sweep" / "proxy_anchor" / f"trial-{diverged[0].number:04d}" / "seed-0"
    assert json.loads((folder / "summary.json").read_text()) == {"status": "diverged", "error": "the loss is nan"}


@pytest.mark.parametrize("loss", ["proxy_anchor", "el_vmf"])
def test_real_divergence_is_told_from_a_wrong_configuration(write, tmp_path, loss):
    config = compose(write(), [f"loss={loss}", "optimizers.model={SGD: {lr: 1.0e+25}}"]).config
    message = sweep_workers._run_task([(config, tmp_path / "run")], None)
    assert isinstance(message, sweep_workers.Finished)
    assert message.score is None
    assert message.error


def test_a_wrong_value_in_a_trial_stops_the_sweep(write, tmp_path, threads, capsys):
    """Found only when the loss is built; its slot is free for the next start."""
    section = SWEEP.replace(
        "loss.ProxyAnchorLoss.alpha: {uniform: [8, 64]}", "loss.VMFProxyLoss.temperature: {choice: [-1]}"
    )
    folder = tmp_path / "sweep"
    assert cli.main(["sweep", write(section), "--losses", "el_vmf", "--dir", str(folder)]) == 2
    error = capsys.readouterr().err
    assert "temperature must be a positive number, got -1" in error
    assert "trial 0 of el_vmf" in error
    study = optuna.load_study(study_name="tiny/el_vmf", storage=f"sqlite:///{folder / 'study.db'}")
    assert {trial.state for trial in study.trials} == {TrialState.FAIL}


@pytest.mark.parametrize(
    "serve", [lambda connection: connection.close(), lambda connection: connection.recv() and connection.close()]
)
def test_a_worker_that_dies_is_reported(write, tmp_path, threads, monkeypatch, capsys, serve):
    monkeypatch.setattr(ThreadPool, "_serve", staticmethod(serve))
    assert cli.main(["sweep", write(), "--dir", str(tmp_path / "sweep")]) == 1
    assert "process ended unexpectedly" in capsys.readouterr().err


def test_median_pruner_stops_what_is_behind(write, tmp_path, trainings):
    section = SWEEP.replace("pruner: none", "pruner: median").replace("general.epochs: {int: [1, 3]}", "")
    (result,) = search(write(section), tmp_path / "sweep", trials=12)
    assert [trial.state for trial in result.trials[:5]] == [TrialState.COMPLETE] * 5, "some are needed to compare with"
    complete = [trial.value for trial in result.trials if trial.state == TrialState.COMPLETE]
    pruned = [trial for trial in result.trials if trial.state == TrialState.PRUNED]
    assert pruned
    for trial in pruned:
        before = [t.value for t in result.trials if t.number < trial.number and t.state == TrialState.COMPLETE]
        assert trial.value < statistics.median(before)
        assert max(trial.intermediate_values) < 3, "it was stopped before the last epoch"
    assert result.best.value == max(complete)


# Interruption ---------------------------------------------------------------------------------------------------


class _Killed(BaseException):
    pass


def test_a_sweep_killed_again_and_again_ends_as_if_it_had_not_been(write, tmp_path, trainings, monkeypatch):
    experiment = write()
    whole = found(search(experiment, tmp_path / "whole", trials=16))
    scores = [score for _, _, score in whole]
    assert statistics.mean(scores[9:]) > statistics.mean(scores[:5]), "TPE learns after five trials drawn blindly"
    finish = LossStudy.finish
    monkeypatch.setattr(LossStudy, "give_up", lambda self, trial: None)  # as if killed: nothing is tidied up
    monkeypatch.setattr(sweep_owner, "_SILENCE", 0.0)  # its lock file goes with the `with`
    for finished in (0, 1, 11):
        left = iter(range(finished))

        def finish_or_die(self, *arguments, left=left):
            if next(left, None) is None:
                raise _Killed
            finish(self, *arguments)

        monkeypatch.setattr(LossStudy, "finish", finish_or_die)
        with pytest.raises(_Killed):
            search(experiment, tmp_path / "killed", trials=16)
    monkeypatch.setattr(LossStudy, "finish", finish)
    assert found(search(experiment, tmp_path / "killed", trials=16)) == whole
    done = len(trainings.configs)
    assert done == 16 + 16 + 3, "those that were killed were done again, with the same parameters"
    assert found(search(experiment, tmp_path / "killed", trials=16)) == whole
    assert len(trainings.configs) == done, "nothing was left to do"


def test_ctrl_c_says_how_to_go_on(write, tmp_path, trainings, monkeypatch, capsys):
    messages, seen = ThreadPool.messages, []

    def interrupted(self, timeout):
        for message in messages(self, timeout):
            seen.append(message)
            if len(seen) == 3:
                raise KeyboardInterrupt
            yield message

    monkeypatch.setattr(ThreadPool, "messages", interrupted)
    folder = tmp_path / "sweep"
    command = ["sweep", write(), "--dir", str(folder), "--jobs", "1", "--trials", "2"]
    assert cli.main(command) == 130
    assert f"the same command goes on with the trials in {folder}" in capsys.readouterr().err
    storage = f"sqlite:///{folder / 'study.db'}"
    states = [
        trial.state
        for study in optuna.get_all_study_summaries(storage)
        for trial in optuna.load_study(study_name=study.study_name, storage=storage).trials
    ]
    assert TrialState.RUNNING not in states
    monkeypatch.setattr(ThreadPool, "messages", messages)
    assert cli.main(command) == 0
    assert [loss["finished"] for loss in json.loads((folder / "sweep.json").read_text())["losses"]] == [2, 2]


def test_more_trials_may_be_added_but_nothing_else_changed(write, tmp_path, trainings, capsys):
    experiment, folder = write(), tmp_path / "sweep"
    (first,) = search(experiment, folder, trials=2)
    (more,) = search(experiment, folder, trials=3)
    assert found([more])[:2] == found([first])
    assert len(trainings.configs) == 3
    (fewer,) = search(experiment, folder, trials=1)
    assert found([fewer]) == found([first])[:1]
    write(SWEEP.replace("[8, 64]", "[8, 65]"))
    with pytest.raises(
        ConfigError, match=r"tiny/proxy_anchor was begun with another sweep\.space: choose another --dir"
    ):
        search(experiment, folder)
    write(SWEEP)
    arguments = ["sweep", experiment, "--losses", "proxy_anchor", "--dir", str(folder), "--trials", "1"]
    assert cli.main([*arguments, "general.batch_size=8"]) == 2
    assert "was begun with another general" in capsys.readouterr().err
    assert cli.main([*arguments, "general.batch_size=8", "--overwrite"]) == 0
    assert len(trainings.configs) == 4
    assert trainings.configs[-1].general.batch_size == 8


# Several machines -----------------------------------------------------------------------------------------------


def studies_of_two_machines(experiment, tmp_path, owners, count=3):
    loss = sweep_plan.make_plan(experiment, ["proxy_anchor"], [], count).losses[0]
    for owner in owners:
        storage = open_storage(f"sqlite:///{tmp_path / 'shared.db'}")
        yield LossStudy(storage, loss.study, loss.space, count, {}, "tpe", 0, make_pruner("none", 3), owner)


def test_two_machines_share_a_study(write, tmp_path, trainings, monkeypatch):
    """Two sweeps at once on one database: every slot is done, none twice."""
    monkeypatch.setattr(sweep, "_WAIT_SECONDS", 0.2)
    experiment, storage = write(), f"sqlite:///{tmp_path / 'shared.db'}"
    search(experiment, tmp_path / "a", trials=1, storage=storage)  # tables are there
    results = {}
    machines = [
        threading.Thread(
            target=lambda n=n: results.update({n: search(experiment, tmp_path / n, trials=9, storage=storage)})
        )
        for n in ("a", "b")
    ]
    for machine in machines:
        machine.start()
    for machine in machines:
        machine.join(60)
    assert found(results["a"]) == found(results["b"])
    assert [trial.user_attrs["slot"] for trial in results["a"][0].trials] == list(range(9))
    assert len({trial.params["optimizers.proxy_lr"] for trial in results["a"][0].trials}) == 9
    assert len(trainings.configs) == 9
    folders = [{path.name for path in (tmp_path / n / "proxy_anchor").glob("trial-*")} for n in ("a", "b")]
    assert not folders[0] & folders[1]


def test_a_silent_machine_is_taken_for_dead_and_its_late_result_ignored(write, tmp_path, monkeypatch):
    with sweep_owner.Owner(tmp_path / "here") as here, sweep_owner.Owner(tmp_path / "there") as there:
        mine, theirs = studies_of_two_machines(write(), tmp_path, (here, there))
        lost = theirs.ask()
        mine.fail_dead()
        trial = mine.ask()
        assert (lost.user_attrs["slot"], trial.user_attrs["slot"]) == (0, 1), "a living machine keeps its slot"
        now = time.time()
        monkeypatch.setattr(sweep_owner.time, "time", lambda: now + 3600)
        mine.keep_alive(trial)
        mine.fail_dead()
        again = mine.ask()
        assert again.user_attrs["slot"] == 0
        assert again.params == lost.params
        with pytest.warns(UserWarning, match="had been given up"):
            theirs.finish(lost, 0.9, 1.0, None)
        mine.finish(again, 0.1, 1.0, None)
        assert [trial.value for trial in mine.finished()] == [0.1]


def test_a_lock_tells_the_living_from_the_dead(tmp_path):
    program = (
        "import sys, time; from pathlib import Path; sys.path.insert(0, sys.argv[2])\n"
        "from pml_nivmf.experiments.sweeps.owner import Owner\n"
        "with Owner(Path(sys.argv[1])) as owner: print(owner.name, flush=True); time.sleep(60)"
    )
    with (
        subprocess.Popen([sys.executable, "-c", program, tmp_path, ROOT], stdout=subprocess.PIPE, text=True) as process,
        sweep_owner.Owner(tmp_path) as owner,
    ):
        name = process.stdout.readline().strip()
        assert not owner.is_dead(name, time.time() - 1e6)
        process.kill()
        process.wait(10)
        assert owner.is_dead(name, time.time())
        assert not owner.is_dead(owner.name, 0.0)
        assert not owner.is_dead("elsewhere", time.time() - 100)
        assert owner.is_dead("elsewhere", time.time() - 1000)


# Everything together --------------------------------------------------------------------------------------------


def test_sigkill_then_the_same_command_with_real_trainings(write, tmp_path, threads, monkeypatch, capsys):
    experiment, folder = write(SWEEP.replace("pruner: none", "pruner: median")), tmp_path / "sweep"
    arguments = [
        "sweep",
        experiment,
        "--losses",
        "el_vmf",
        "--dir",
        str(folder),
        "--jobs",
        "1",
        "--reproduce-best",
        "2",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "pml_nivmf", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 300
    while not (folder / "el_vmf" / "trial-0002").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    killed = optuna.load_study(study_name="tiny/el_vmf", storage=f"sqlite:///{folder / 'study.db'}").trials
    assert sum(trial.state == TrialState.COMPLETE for trial in killed) >= 2
    whole = search(experiment, tmp_path / "whole", ["el_vmf"])
    assert cli.main(arguments) == 0
    output = capsys.readouterr().out
    table = json.loads((folder / "sweep.json").read_text())
    (loss,) = table["losses"]
    assert [(t["slot"], t["score"], t["values"]) for t in loss["trials"]] == [
        (slot, trial.value if trial.state == TrialState.COMPLETE else None, trial.params)
        for slot, trial in enumerate(whole[0].trials)
    ], "the killed sweep found what an undisturbed one finds"
    assert loss["best"]["score"] == max(t["score"] for t in loss["trials"] if t["score"] is not None)
    for summary in folder.glob("el_vmf/trial-*/seed-0/summary.json"):
        assert "test" not in json.loads(summary.read_text())
    check_reproduction(folder, table, loss["best"]["values"])
    for text in ("tiny: best validation_mean_average_precision_at_r", "R@1", f"trials, tables and plot in {folder}"):
        assert text in output
    assert (
        f"optimizers.proxy_lr={loss['best']['values']['optimizers.proxy_lr']:.4g}" in (folder / "sweep.md").read_text()
    )
    assert imread(folder / "sweep.png")[..., :3].std() > 0.05, "there is something to see"
    assert (folder / "sweep.svg").stat().st_size > 10_000


def check_reproduction(folder, table, values):
    summaries = {
        path.parent.name: json.loads(path.read_text()) for path in folder.glob("el_vmf/best/seed-*/summary.json")
    }
    assert set(summaries) == {"seed-1000", "seed-1001"}
    recalls = [summary["test"]["recall_at_1"] for summary in summaries.values()]
    row = table["reproduced"][0]["test"]["recall_at_1"]
    low, _ = (
        stats.t.interval(0.95, 1, np.mean(recalls), stats.sem(recalls)) if recalls[0] != recalls[1] else (recalls[0], 0)
    )
    assert row["mean"] == pytest.approx(np.mean(recalls))
    assert row["mean"] - row["half_width_95"] == pytest.approx(low)
    config = OmegaConf.load(folder / "el_vmf" / "best" / "seed-1000" / "config.yaml")
    assert config.optimizers.proxy_lr == values["optimizers.proxy_lr"]


@pytest.mark.slow
def test_ctrl_c_in_a_terminal(write, tmp_path):
    folder = tmp_path / "sweep"
    with subprocess.Popen(
        [sys.executable, "-m", "pml_nivmf", "sweep", write(), "--dir", str(folder), "--trials", "1000", "--jobs", "2"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        deadline = time.monotonic() + 300
        while not (folder / "el_vmf" / "trial-0001").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
        error = last_words(process)
    assert process.returncode == 130, error
    assert f"the same command goes on with the trials in {folder}" in error
    assert "Traceback" not in error
    study = optuna.load_study(study_name="tiny/el_vmf", storage=f"sqlite:///{folder / 'study.db'}")
    assert TrialState.RUNNING not in {trial.state for trial in study.trials}
