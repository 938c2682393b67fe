"""Sweeps: what is searched, what a trial is, and that the test set has no influence."""

import json
import math
import statistics
from pathlib import Path

import numpy as np
import pytest
from optuna.trial import TrialState

from pml_nivmf import cli
from pml_nivmf.experiments import run, search_space, sweep
from pml_nivmf.experiments.config import ConfigError, compose, parse_saved
from pml_nivmf.reports import results

from ..data import fakes
from .sweeps import SWEEP, parameters, search


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
    assert result.ranked[0].params["optimizers.proxy_lr"] == min(rates, key=lambda rate: abs(math.log10(rate) + 1))


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
        assert search_space.decode(final.ranked[0].params) == {"optimizers.proxy_lr": 0.2}
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
    assert not result.ranked
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


def test_trials_may_be_added_but_nothing_else_changed(write, tmp_path, trainings, capsys):
    experiment, folder = write(), tmp_path / "sweep" / "tiny"
    (first,) = search(experiment, folder, trials=2)
    (more,) = search(experiment, folder, trials=3)
    assert parameters(more)[:2] == parameters(first)
    assert len(trainings.configs) == 3
    (fewer,) = search(experiment, folder, trials=1)
    assert parameters(fewer) == parameters(first)[:1]
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(" trials are finished")[0] for line in printed if "reused" in line] == ["2", "1"]
    write(SWEEP.replace("[8, 64]", "[8, 65]"))
    with pytest.raises(ConfigError, match=r"tiny/proxy_anchor was begun with another sweep\.space.*choose another"):
        search(experiment, folder)
    write(SWEEP)
    arguments = ["sweep", experiment, "--losses", "proxy_anchor", "--dir", str(folder.parent), "--trials", "1"]
    assert cli.main([*arguments, "general.batch_size=4"]) == 2
    assert "was begun with another general.batch_size" in capsys.readouterr().err
    assert cli.main([*arguments, "general.batch_size=4", "--overwrite"]) == 0
    assert len(trainings.configs) == 4


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
    tuned = results.collect_tuned(folder)["features"]
    assert (tuned["sampler"], tuned["losses"]["el_vmf"]["trials"]) == ("tpe", 2)
