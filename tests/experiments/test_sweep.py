"""Sweeps: what is searched, that every trial is run whatever is killed, and that the test set has no say."""

import json
import math
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import optuna
import pytest
from matplotlib.image import imread
from optuna.trial import TrialState

from pml_nivmf import cli
from pml_nivmf.experiments import compare, run, search_space, sweep
from pml_nivmf.experiments.config import ConfigError, compose, parse_saved
from pml_nivmf.reports import recorded

from ..data import fakes
from .test_compare import run_here, wait_for_processes
from .test_search_space import GRID, SWEEP, writer

ROOT = Path(__file__).parents[2]
COMBINATIONS = [(lr, alpha, n) for lr in (0.01, 0.1) for alpha in (16, 32) for n in (0, 1)]


@pytest.fixture
def write(experiment, tmp_path):
    return writer(experiment, tmp_path)


class Trainings:
    """Replaces `run.start` by a score that follows from the configuration, and lists the configurations."""

    def __init__(self):
        self.configs = []
        self.score = lambda config: -abs(math.log10(config.optimizers.proxy_lr) + 1)

    def __call__(self, config, folder, overwrite, trial):
        self.configs.append(config)
        status, score = "finished", self.score(config)
        for epoch in range(1, config.general.epochs + 1):
            if trial({"epoch": epoch, f"validation_{config.evaluation.select}": score}):
                status = "pruned"
                break
        return {"status": status, "validation_score": score}

    def grid(self):
        settings = [(c.optimizers.proxy_lr, c.loss.ProxyAnchorLoss.alpha, c.schedule.scheduler) for c in self.configs]
        return sorted((lr, alpha, len(scheduler)) for lr, alpha, scheduler in settings)


@pytest.fixture
def in_process(monkeypatch):
    monkeypatch.setattr(compare, "in_processes", run_here)


@pytest.fixture
def trainings(monkeypatch, in_process):
    trainings = Trainings()
    monkeypatch.setattr(run, "start", trainings)
    return trainings


def search(experiment, folder, losses=("proxy_anchor",), trials=None, storage=None, overrides=()):
    plans = search_space.plan(experiment, losses, overrides, trials)
    return sweep.run_searches(plans, folder, storage or f"sqlite:///{folder / 'study.db'}", False, 1)


def parameters(result):
    return [trial.params for trial in result.trials]


def test_values_reach_the_configuration(write, tmp_path, trainings):
    section = SWEEP.replace("[default, cosine]", "[default, cosine, [cosine, early_stopping]]")
    (result,) = search(write(section), tmp_path / "sweep", trials=6)
    for config, trial in zip(trainings.configs, result.trials, strict=True):
        values = search_space.decode(trial.params)
        assert config.optimizers.proxy_lr == pytest.approx(values["optimizers.proxy_lr"], rel=1e-12)
        assert config.general.epochs == values["general.epochs"]
        assert config.loss.ProxyAnchorLoss.alpha == pytest.approx(values["loss.ProxyAnchorLoss.alpha"], rel=1e-12)
        assert bool(config.schedule.scheduler) == ("cosine" in values["schedule"])
        assert (config.schedule.patience is not None) == ("early_stopping" in values["schedule"])
    rates = [config.optimizers.proxy_lr for config in trainings.configs]
    assert len({*rates}) == 6
    assert 0.001 <= min(rates) < 0.03 < max(rates) <= 1.0
    assert result.best.params["optimizers.proxy_lr"] == min(rates, key=lambda rate: abs(math.log10(rate) + 1))


def test_first_trial(write, tmp_path, trainings):
    start = "\n  start: {optimizers.proxy_lr: 0.25, loss.ProxyAnchorLoss.alpha: 9, schedule: cosine}\n"
    anchor, vmf = search(write(SWEEP + start), tmp_path / "sweep", ["proxy_anchor", "el_vmf"], trials=2)
    first = anchor.trials[0].params
    assert (first["optimizers.proxy_lr"], first["loss.ProxyAnchorLoss.alpha"]) == (0.25, 9)
    assert vmf.trials[0].params["optimizers.proxy_lr"] == 0.25
    assert vmf.trials[0].params["schedule"] == '"cosine"'
    assert anchor.trials[1].params["optimizers.proxy_lr"] != 0.25


def test_median_over_seeds_counts(write, tmp_path, trainings):
    trainings.score = lambda config: [0.9, 0.1, 0.2][config.general.seed - 5]
    experiment, folder = write(SWEEP + "\n  seeds: 3\n"), tmp_path / "sweep"
    (result,) = search(experiment, folder, trials=2, overrides=["general.seed=5"])
    assert [trial.value for trial in result.trials] == [0.2, 0.2]
    assert [config.general.seed for config in trainings.configs] == [5, 6, 7, 5, 6, 7]
    assert Path(trainings.configs[2].general.run_dir) == folder / "proxy_anchor/trial-0000/seed-7"


def test_finalists_are_chosen_by_the_mean_over_more_seeds(write, tmp_path, in_process, monkeypatch):
    """The first seed prefers 0.1, the others 0.2; 0.3 is no finalist."""
    scores = {0.1: [0.9, 0.1, 0.2], 0.2: [0.8, 0.7, 0.6], 0.3: [0.5, 1.0, 1.0]}
    started = []

    def start(config, folder, overwrite, trial):
        rate, seed = config.optimizers.proxy_lr, config.general.seed
        started.append((rate, seed))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "summary.json").write_text(json.dumps({"validation_score": scores[rate][seed], "status": "finished"}))
        return {"status": "finished", "validation_score": scores[rate][seed]}

    monkeypatch.setattr(run, "start", start)
    space = "\n  space: {optimizers.proxy_lr: {choice: [0.1, 0.2, 0.3]}}\n  finalists: 2\n  finalist_seeds: 2\n"
    (result,) = search(write("sweep:\n  sampler: grid" + space), tmp_path / "sweep")
    for _ in range(2):  # the second time everything is there
        final = sweep.run_finals(result, tmp_path / "sweep", 1)
        assert search_space.decode(final.best.params) == {"optimizers.proxy_lr": 0.2}
        assert sorted(final.finals.values()) == [scores[0.2], scores[0.1]]
    assert sorted(started) == [(0.1, 0), (0.1, 1), (0.1, 2), (0.2, 0), (0.2, 1), (0.2, 2), (0.3, 0)]


def test_a_trial_computes_no_test_metrics(write, tmp_path):
    config = compose(write(), ["loss=proxy_anchor"]).config
    rows = []
    summary = run.start(config, tmp_path / "trial", trial=lambda row: bool(rows.append(row)) or row["epoch"] == 2)
    assert (summary["status"], summary["epochs"]) == ("pruned", 2)
    assert not [key for key in (*summary, *rows[0]) if "test" in key]
    files = {path.name for path in (tmp_path / "trial").iterdir() if path.name != ".lock"}
    assert files == {"config.yaml", "environment.json", "history.json", "summary.json"}


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        (["optimizers.model={SGD: {lr: 1.0e+25}}"], "no finite validation_mean_average_precision_at_r: "),
        (
            ["dataset.FeatureArrays.npz={easy}", "evaluation={metrics: [certainty_auroc], select: certainty_auroc}"],
            "no finite validation_certainty_auroc: finished",  # every retrieval is right
        ),
    ],
)
def test_real_trainings_without_a_score_count_as_trials(write, tmp_path, in_process, overrides, error):
    easy = fakes.features(tmp_path / "easy.npz", x_train=np.repeat(np.eye(8), 5, axis=0), x_test=np.eye(40, 8))
    overrides = [text.replace("{easy}", str(easy)) for text in overrides]
    (result,) = search(write(), tmp_path / "sweep", ["el_vmf"], trials=2, overrides=overrides)
    assert [trial.state for trial in result.trials] == [TrialState.PRUNED] * 2
    assert error in result.trials[0].user_attrs["error"]
    assert result.best is None
    sweep.write_results([result], tmp_path / "sweep")
    (loss,) = json.loads((tmp_path / "sweep" / "sweep.json").read_text())["losses"]
    assert (loss["finished"], loss["best"]) == (2, None)
    assert [trial["state"] for trial in loss["trials"]] == ["diverged"] * 2


def test_a_wrong_value_in_a_trial_stops_the_sweep(write, tmp_path, in_process, capsys):
    """The value is noticed only when the loss is built."""
    temperature = "loss.VMFProxyLoss.temperature: {choice: [-1]}"
    section = SWEEP.replace("loss.ProxyAnchorLoss.alpha: {uniform: [8, 64]}", temperature)
    assert cli.main(["sweep", write(section), "--losses", "el_vmf", "--dir", str(tmp_path / "sweep")]) == 2
    error = capsys.readouterr().err
    assert "temperature must be a positive number, got -1" in error
    assert "trial 0 of el_vmf" in error


def test_median_pruner_stops_trials_that_are_behind(write, tmp_path, trainings):
    section = SWEEP.replace("pruner: none", "pruner: median").replace("general.epochs: {int: [1, 3]}", "")
    (result,) = search(write(section), tmp_path / "sweep", trials=12)
    assert [trial.state for trial in result.trials[:5]] == [TrialState.COMPLETE] * 5, "some are needed to compare with"
    pruned = [trial for trial in result.trials if trial.state == TrialState.PRUNED]
    assert pruned
    for trial in pruned:
        before = [t.value for t in result.trials if t.number < trial.number and t.state == TrialState.COMPLETE]
        assert trial.value < statistics.median(before)
        assert max(trial.intermediate_values) < 3, "it was stopped before the last epoch"


class Killed(BaseException):
    """Leaves a trial as a kill does: nothing is tidied up."""


@pytest.fixture
def short_heartbeat(monkeypatch):
    for name, value in {"_HEARTBEAT_SECONDS": 1, "_GRACE_SECONDS": 1, "_WAIT_SECONDS": 0.2}.items():
        monkeypatch.setattr(sweep, name, value)


@pytest.mark.parametrize("failure", [Killed, OSError])
def test_a_grid_that_was_stopped_again_and_again_is_completed(write, tmp_path, trainings, short_heartbeat, failure):
    experiment, folder = write(GRID), tmp_path / "sweep"
    finished = []

    def score(config):
        if len(finished) in stops:
            stops.remove(len(finished))
            raise failure
        finished.append(config)
        return 0.5

    trainings.score, stops = score, {0, 1, 6}
    for _ in range(3):
        with pytest.raises(failure):
            search(experiment, folder)
    (result,) = search(experiment, folder)
    trainings.configs = finished
    assert trainings.grid() == COMBINATIONS
    search(experiment, folder)
    assert len(finished) == len(result.trials) == len(COMBINATIONS), "nothing was left to do"


def test_a_trial_killed_before_its_first_heartbeat_is_run_again(write, tmp_path, trainings, short_heartbeat):
    (plan,) = search_space.plan(write(GRID), ["proxy_anchor"], [])
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    sweep.open_study(plan, storage).ask()  # only `optimize` writes heartbeats
    (result,) = sweep.run_searches([plan], tmp_path, storage, False, 1)
    assert len(result.trials) == len(COMBINATIONS)
    assert trainings.grid() == COMBINATIONS


def test_trials_may_be_added_but_nothing_else_changed(write, tmp_path, trainings, capsys):
    experiment, folder = write(), tmp_path / "sweep" / "tiny"
    (first,) = search(experiment, folder, trials=2)
    (more,) = search(experiment, folder, trials=3)
    assert parameters(more)[:2] == parameters(first)
    assert len(trainings.configs) == 3
    (fewer,) = search(experiment, folder, trials=1)
    assert parameters(fewer) == parameters(first)[:1]
    write(SWEEP.replace("[8, 64]", "[8, 65]"))
    with pytest.raises(ConfigError, match=r"tiny/proxy_anchor was begun with another sweep\.space.*choose another"):
        search(experiment, folder)
    write(SWEEP)
    arguments = ["sweep", experiment, "--losses", "proxy_anchor", "--dir", str(folder.parent), "--trials", "1"]
    assert cli.main([*arguments, "general.batch_size=4"]) == 2
    assert "was begun with another general.batch_size" in capsys.readouterr().err
    assert cli.main([*arguments, "general.batch_size=4", "--overwrite"]) == 0
    assert len(trainings.configs) == 4


def in_threads(work, arguments):
    threads = [threading.Thread(target=work, args=(argument,)) for argument in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


def test_two_machines_share_a_sweep(write, tmp_path, trainings, short_heartbeat):
    experiment, storage, results = write(GRID), f"sqlite:///{tmp_path / 'shared.db'}", {}
    sweep.open_storage(storage)
    plans = search_space.plan(experiment, ["proxy_anchor"], [])
    in_threads(lambda n: results.update({n: sweep.run_searches(plans, tmp_path / n, storage, False, 1)}), "ab")
    assert parameters(results["a"][0]) == parameters(results["b"][0])
    assert trainings.grid() == COMBINATIONS
    assert {Path(config.general.run_dir).relative_to(tmp_path).parts[0] for config in trainings.configs} == {"a", "b"}


def test_a_queued_trial_is_taken_once(tmp_path):
    storages = [sweep.open_storage.__wrapped__(f"sqlite:///{tmp_path / 'shared.db'}") for _ in range(4)]
    queue, numbers = optuna.create_study(study_name="queue", storage=storages[0]), []
    for value in range(40):
        queue.enqueue_trial({"x": value})
    in_threads(
        lambda s: numbers.extend(optuna.load_study(study_name="queue", storage=s).ask().number for _ in range(10)),
        storages,
    )
    assert sorted(numbers) == list(range(40))


def test_best_settings_are_reproduced_with_new_seeds(write, tmp_path, in_process, capsys):
    folder = tmp_path / "sweep" / "tiny"
    arguments = ["sweep", write(), "--losses", "el_vmf", "--trials", "2", "--reproduce-best", "2"]
    assert cli.main([*arguments, "--dir", str(folder.parent)]) == 0
    output = capsys.readouterr().out
    (loss,) = json.loads((folder / "sweep.json").read_text())["losses"]
    summaries = {path.parent: json.loads(path.read_text()) for path in folder.glob("el_vmf/*/seed-*/summary.json")}
    best = [summary for path, summary in summaries.items() if path.parent.name == "best"]
    assert len(best) == len(summaries) - len(best) == 2
    assert [summary for summary in summaries.values() if "test" in summary] == best
    (row,) = json.loads((folder / "comparison.json").read_text())
    recalls = [summary["test"]["recall_at_1"] for summary in best]
    assert row["metrics"]["recall_at_1"]["mean"] == pytest.approx(np.mean(recalls))
    config = parse_saved((folder / "el_vmf" / "best" / "seed-1000" / "config.yaml").read_text(), "the run")
    assert config.optimizers.proxy_lr == pytest.approx(loss["best"]["values"]["optimizers.proxy_lr"])
    assert f"{loss['best']['values']['optimizers.proxy_lr']:.4g}" in (folder / "sweep.md").read_text()
    assert "tiny: validation_mean_average_precision_at_r" in output
    assert imread(folder / "sweep-el_vmf.png")[..., :3].std() > 0.05, "there is something to see"
    tuned = recorded.collect_tuned(folder)["features"]
    assert (tuned["sampler"], tuned["losses"]["el_vmf"]["trials"]) == ("tpe", 2)


@pytest.mark.slow
def test_sigkill_then_the_same_command(write, tmp_path):
    folder = tmp_path / "sweep" / "tiny"
    arguments = ["sweep", write(), "--losses", "el_vmf", "--dir", str(folder.parent), "--jobs", "2", "--trials", "12"]
    process = subprocess.Popen([sys.executable, "-m", "pml_nivmf", *arguments], cwd=ROOT, start_new_session=True)
    deadline = time.monotonic() + 300
    while not (folder / "el_vmf" / "trial-0003").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.wait()
    wait_for_processes(process.pid)
    assert cli.main(arguments) == 0
    (loss,) = json.loads((folder / "sweep.json").read_text())["losses"]
    assert loss["finished"] == 12
