"""Real tiny trainings, end to end: run folders, resume after SIGKILL, selection, comparison, plugins, bad configs."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from pml_nivmf import cli
from pml_nivmf.experiments import checkpoint, compare, registry, run
from pml_nivmf.experiments.build import build_parts
from pml_nivmf.experiments.config import compose
from pml_nivmf.experiments.config_files import variant_names
from pml_nivmf.experiments.errors import ConfigError

from ..data import fakes

ROOT = Path(__file__).parents[2]


def test_run_folder_holds_what_is_needed_to_run_it_again(experiment, tmp_path):
    folder = tmp_path / "run"
    summary = run.start(compose(experiment).config, folder)
    assert summary["status"] == "finished"
    assert set(summary["test"]) == {"mean_average_precision_at_r", "recall_at_1", "recall_at_2"}
    assert json.loads((folder / "summary.json").read_text()) == summary
    history = json.loads((folder / "history.json").read_text())
    assert [row["epoch"] for row in history] == [1, 2, 3]
    assert history[-1]["train_loss"] < history[0]["train_loss"]
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["seed"] == 0
    assert environment["packages"]["torch"] == torch.__version__.split("+")[0]
    assert (folder / "records" / "metrics.csv").exists()
    assert (folder / "records" / "logs.db").exists()
    assert list((folder / "tensorboard").iterdir())
    assert len(list((folder / "checkpoints").iterdir())) == 2
    assert "embedding_size: 16" in checkpoint.load_newest(folder / "checkpoints")["config"]
    again = run.start(OmegaConf.load(folder / "config.yaml"), tmp_path / "again")
    assert again["test"] == summary["test"], "the same config and seed give the same numbers"


def test_test_metrics_are_those_of_the_best_validation_epoch(experiment, tmp_path):
    config = compose(experiment, ["general.epochs=6"]).config
    summary = run.start(config, tmp_path / "run")
    history = json.loads((tmp_path / "run" / "history.json").read_text())
    scores = [row["validation_mean_average_precision_at_r"] for row in history]
    assert summary["best_epoch"] == 1 + scores.index(max(scores))
    parts = build_parts(config)
    best = torch.load(tmp_path / "run" / "best.pt", weights_only=True)
    parts.trunk.load_state_dict(best["trunk"])
    parts.embedder.load_state_dict(best["embedder"])
    assert run._evaluate(parts, "test", 0) == {f"test_{k}": v for k, v in summary["test"].items()}


def test_a_batch_larger_than_the_data_is_refused(experiment, tmp_path):
    config = compose(experiment, ["sampler=shuffle", "general.batch_size=100000"]).config
    with pytest.raises(ConfigError, match=r"general\.batch_size: 100000 is more than the \d+ training items"):
        run.start(config, tmp_path / "run")


def test_early_stopping(experiment, tmp_path, monkeypatch):
    scores = iter([0.5, 0.4, 0.3, 0.2, 0.1, 0.05])
    real = run._evaluate

    def evaluate(parts, split, epoch):
        metrics = real(parts, split, epoch)
        return metrics | {"validation_mean_average_precision_at_r": next(scores)} if split == "validation" else metrics

    monkeypatch.setattr(run, "_evaluate", evaluate)
    summary = run.start(compose(experiment, ["general.epochs=6", "schedule.patience=2"]).config, tmp_path / "run")
    assert (summary["epochs"], summary["best_epoch"]) == (3, 1)


class _Killed(BaseException):
    pass


@pytest.mark.parametrize("loss", ["el_nivmf", "panc_el_nivmf", "proxy_anchor"])
@pytest.mark.parametrize("epoch", [1, 3])
@pytest.mark.parametrize(
    "sampler", ["sampler=default", "sampler=shuffle", "sampler={FixedSetOfTriplets: {num_triplets: 40}}"]
)
def test_resume_ends_with_the_same_numbers(experiment, tmp_path, monkeypatch, loss, epoch, sampler):
    config = compose(experiment, [f"loss={loss}", "general.epochs=4", "schedule=cosine", sampler]).config
    whole = run.start(config, tmp_path / "whole")
    save = checkpoint.save

    def save_and_die(folder, state):
        save(folder, state)
        if state["epoch"] == epoch:
            raise _Killed

    monkeypatch.setattr(checkpoint, "save", save_and_die)
    with pytest.raises(_Killed):
        run.start(config, tmp_path / "killed")
    monkeypatch.setattr(checkpoint, "save", save)
    resumed = run.resume(tmp_path / "killed")
    assert resumed["test"] == whole["test"]
    histories = [json.loads((tmp_path / name / "history.json").read_text()) for name in ("whole", "killed")]
    assert histories[0] == histories[1]
    rows = (tmp_path / "killed" / "records" / "metrics.csv").read_text().splitlines()
    assert len(rows) == 1 + 4, "one row an epoch, none twice"


@pytest.mark.parametrize(
    "loss",
    [
        "{CrossBatchMemory: {loss: {TripletMarginLoss: {}}, miner: {MultiSimilarityMiner: {}}, memory_size: 30}}",
        "{MultipleLosses: {losses: [{TripletMarginLoss: {}}, {ProxyAnchorLoss: {}}], weights: [1, 0.5]}}",
    ],
)
def test_losses_of_losses_train_and_resume(experiment, tmp_path, loss):
    """A memory of batches goes on where it was."""
    whole = run.start(compose(experiment, [f"loss={loss}"]).config, tmp_path / "run")
    history = (tmp_path / "run" / "history.json").read_text()
    (tmp_path / "run" / "summary.json").unlink()
    (tmp_path / "run" / "checkpoints" / "epoch-00003.pt").unlink()
    assert run.resume(tmp_path / "run")["test"] == whole["test"]
    assert (tmp_path / "run" / "history.json").read_text() == history


def test_sigkill_then_resume(experiment, tmp_path):
    """A real process, really killed, between or within epochs."""
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "pml_nivmf", "run", experiment, "general.epochs=200", f"general.run_dir={folder}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 120
        while not list(folder.glob("checkpoints/epoch-*3.pt")) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    reached = checkpoint.load_newest(folder / "checkpoints")["epoch"]
    assert 3 <= reached < 200
    config = OmegaConf.load(folder / "config.yaml")
    config.general.epochs = reached + 2
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(config))
    resumed = run.resume(folder)
    whole = run.start(config, tmp_path / "whole")
    assert resumed["test"] == whole["test"]


def test_truncated_checkpoint_falls_back_and_one_without_loss_is_refused(experiment, tmp_path):
    folder = tmp_path / "run"
    config = compose(experiment).config
    whole = run.start(config, folder)
    (folder / "summary.json").unlink()
    newest = folder / "checkpoints" / "epoch-00003.pt"
    newest.write_bytes(newest.read_bytes()[:1000])
    left_over = folder / "checkpoints" / ".epoch-00004.pt.123.partial"  # of a writer that was killed
    left_over.write_bytes(b"half")
    with pytest.warns(UserWarning, match=r"epoch-00003\.pt cannot be read"):
        assert run.resume(folder)["test"] == whole["test"]
    assert not left_over.exists()
    (folder / "summary.json").unlink()
    state = torch.load(newest, weights_only=True)
    del state["loss"]
    torch.save(state, newest)
    with pytest.raises(ValueError, match="lacks loss"):
        run.resume(folder)


def test_finished_and_unfinished_runs_are_not_overwritten(experiment, tmp_path):
    config, folder = compose(experiment, ["general.epochs=1"]).config, tmp_path / "run"
    summary = run.start(config, folder)
    with pytest.raises(ConfigError, match="holds a finished run"):
        run.start(config, folder)
    assert run.resume(folder) == summary
    (folder / "summary.json").unlink()
    with pytest.raises(ConfigError, match="--resume"):
        run.start(config, folder)
    assert run.start(config, folder, overwrite=True)["test"] == summary["test"]
    with pytest.raises(ConfigError, match="is no run folder"):
        run.resume(tmp_path)


@pytest.mark.parametrize("name", ["history.json", "best.pt", "checkpoints/epoch-00001.pt"])
def test_files_of_other_work_are_not_deleted(experiment, tmp_path, name):
    config, file = compose(experiment, ["general.epochs=1"]).config, tmp_path / "mine" / name
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    with pytest.raises(ConfigError, match=f"is no run folder, but holds {file.name}.* pass --overwrite to delete it"):
        run.start(config, tmp_path / "mine")
    assert file.read_text() == "mine"


def test_non_finite_loss_stops_with_the_step(experiment, tmp_path):
    config = compose(experiment, ["loss=proxy_anchor", "optimizers.model={SGD: {lr: 1.0e+30}}"]).config
    with pytest.raises((FloatingPointError, ValueError), match=r"loss is (nan|inf)|NaN|too large"):
        run.start(config, tmp_path / "run")


@pytest.mark.parametrize("loss", variant_names("loss"))
def test_every_loss_variant_trains(experiment, tmp_path, loss):
    miner = {"margin": ["miner=distance_weighted"], "multi_similarity": ["miner=multi_similarity"]}.get(loss, [])
    summary = run.start(compose(experiment, [f"loss={loss}", "general.epochs=1", *miner]).config, tmp_path / "run")
    assert 0 <= summary["test"]["recall_at_1"] <= 1


def test_separate_rates_clipping_and_frozen_batch_norm(experiment):
    overrides = ["optimizers.proxy_lr=0.5", "optimizers.concentration_lr=0.25", "optimizers.embedder_lr=0.125"]
    parts = build_parts(compose(experiment, [*overrides, "optimizers.clip_norm=1.0"]).config)
    rates = {g["name"]: g["lr"] for g in parts.optimizers["metric_loss_optimizer"].param_groups}
    assert (rates["proxies"], rates["log_concentration"], rates["log_temperature"]) == (0.5, 0.25, 0.001)
    assert parts.optimizers["embedder_optimizer"].param_groups[0]["lr"] == 0.125
    assert set(parts.clippers) == {"trunk_grad_clipper", "embedder_grad_clipper", "metric_loss_grad_clipper"}


SPARSE = ["loss={NonIsotropicVMFLoss: {negative_samples: 2, sparse: true}}"]


@pytest.mark.filterwarnings("ignore:Sparse invariant checks", "ignore:`parameters` is an empty generator")
@pytest.mark.parametrize("optimizer", ["{Adagrad: {lr: 0.01}}", "{SGD: {lr: 0.01, momentum: 0.9}}"])
def test_sparse_gradients_train(experiment, tmp_path, optimizer):
    options = [*SPARSE, f"optimizers.model={optimizer}", "optimizers.clip_norm=10"]
    run.start(compose(experiment, options).config, tmp_path / "run")
    history = json.loads((tmp_path / "run" / "history.json").read_text())
    assert history[-1]["train_loss"] < history[0]["train_loss"]


@pytest.mark.parametrize("optimizer", ["{AdamW: {lr: 0.01}}", "{SGD: {lr: 0.01, weight_decay: 0.1}}"])
def test_optimizers_that_take_no_sparse_gradients_are_refused_before_training(experiment, optimizer):
    with pytest.raises(ConfigError, match=r"sparse=True gives gradients .* take Adagrad or SGD, without weight_decay"):
        build_parts(compose(experiment, [*SPARSE, f"optimizers.model={optimizer}"]).config)


def test_every_loss_of_several_has_its_own_rates(experiment):
    loss = "{MultipleLosses: {losses: [{ProxyAnchorLoss: {}}, {TripletMarginLoss: {}}, {NivMFProxyLoss: {}}]}}"
    rates = ["optimizers.proxy_lr=0.5", "optimizers.concentration_lr=0.25", "optimizers.temperature_lr=0.125"]
    parts = build_parts(compose(experiment, [f"loss={loss}", *rates]).config)
    names = {id(parameter): name for name, parameter in parts.loss.named_parameters()}
    groups = parts.optimizers["metric_loss_optimizer"].param_groups
    found = {names[id(p)]: group["lr"] for group in groups for p in group["params"]}
    assert sorted(found.values()) == [0.125, 0.25, 0.5, 0.5]
    assert {name.split(".")[1] for name, rate in found.items() if rate == 0.5} == {"0", "2"}


def test_sparse_gradients_are_noticed_in_a_loss_of_losses(experiment):
    loss = "{MultipleLosses: {losses: [{VMFProxyLoss: {sparse: true, negative_samples: 2}}]}}"
    with pytest.raises(ConfigError, match="sparse=True gives gradients that"):
        build_parts(compose(experiment, [f"loss={loss}"]).config)


def test_compare_makes_a_table_and_goes_on_where_it_stopped(experiment, tmp_path, capsys):
    arguments = ["compare", experiment, "general.epochs=2", "--dir", str(tmp_path / "runs"), "--jobs", "2"]
    assert cli.main(arguments) == 0
    table = json.loads((tmp_path / "runs" / "tiny" / "comparison.json").read_text())
    assert [(row["loss"], row["seeds"]) for row in table] == [("proxy_anchor", 2), ("el_nivmf", 2)]
    first = json.loads((tmp_path / "runs" / "tiny" / "el_nivmf" / "seed-1" / "summary.json").read_text())
    shown = capsys.readouterr().out
    assert "R@1" in shown
    assert len(re.findall(r"\* \d", shown)) == 3, "the best of each metric, also where nothing can be bold"
    assert str(tmp_path / "runs" / "tiny") in shown
    assert "| el_nivmf |" in (tmp_path / "runs" / "tiny" / "comparison.md").read_text()
    assert cli.main(arguments) == 0, "finished runs are taken as they are"
    assert json.loads((tmp_path / "runs" / "tiny" / "comparison.json").read_text()) == table
    assert first["seed"] == 1


def test_rows_of_a_comparison_are_what_their_names_say(experiment, tmp_path):
    overrides = ["loss.NonIsotropicVMFLoss.n_samples=3", "general.epochs=1"]
    jobs = compare.plan(experiment, ["proxy_anchor", "el_nivmf"], 1, overrides, tmp_path)
    assert [OmegaConf.to_container(job.config.loss) for job in jobs] == [
        {"ProxyAnchorLoss": {"margin": 0.1, "alpha": 32}},
        {"NonIsotropicVMFLoss": {"estimator": "monte_carlo", "normalizer": "paper", "n_samples": 3}},
    ]
    own = tmp_path / "own.yaml"
    own.write_text(Path(experiment).read_text() + "loss: {ProxyNCALoss: {}}\n")
    with pytest.raises(ConfigError, match="el_nivmf is a NonIsotropicVMFLoss, but the configuration makes it"):
        compare.plan(str(own), ["el_nivmf"], 1, [], tmp_path)


def test_runs_of_another_configuration_are_not_reused(experiment, tmp_path):
    folder = tmp_path / "runs"
    (job,) = compare.plan(experiment, ["proxy_anchor"], 1, ["general.epochs=1"], folder)
    run.start(job.config, job.folder)
    compare.plan(experiment, ["proxy_anchor"], 1, ["general.epochs=1"], folder)
    with pytest.raises(ConfigError, match=r"holds a run with another general\.epochs: .*--overwrite"):
        compare.plan(experiment, ["proxy_anchor"], 1, ["general.epochs=2"], folder)
    assert compare.plan(experiment, ["proxy_anchor"], 1, ["general.epochs=2"], folder, overwrite=True)


def test_resume_refuses_a_changed_configuration(experiment, tmp_path):
    folder = tmp_path / "run"
    run.start(compose(experiment, ["general.epochs=1"]).config, folder)
    (folder / "summary.json").unlink()
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(text.replace("embedding_size: 16", "embedding_size: 8"))
    with pytest.raises(ConfigError, match=r"differs from the checkpoint's configuration in model\.embedding_size"):
        run.resume(folder)
    (folder / "config.yaml").write_text(text.replace("epochs:", "epoch:"))
    with pytest.raises(ConfigError, match=r"unknown key 'general\.epoch': did you mean 'epochs'"):
        run.resume(folder)


def test_overrides_may_stand_behind_options(experiment, capsys):
    assert cli.main(["run", experiment, "--dry-run", "general.epochs=9"]) == 0
    assert OmegaConf.create(capsys.readouterr().out).general.epochs == 9
    with pytest.raises(SystemExit):
        cli.main(["run", experiment, "--dry-run", "--no-such-option"])


def test_library_arguments_reach_the_trunk(experiment):
    from pml_nivmf.experiments.registry import check

    check("trunk", {"TimmTrunk": {"name": "resnet10t", "drop_rate": 0.1}}, "model.trunk")
    with pytest.raises(ConfigError, match="ConvNet has no argument 'wdith': did you mean 'width'"):
        check("trunk", {"ConvNet": {"wdith": 3}}, "model.trunk")


def test_bad_loss_fails_before_the_first_run_of_a_comparison(experiment, tmp_path, capsys):
    bad = tmp_path / "bad.yaml"
    bad.write_text(Path(experiment).read_text() + "loss: {NonIsotropicVMFLoss: {n_sample: 3}}\n")
    assert cli.main(["compare", str(bad), "--losses", "el_nivmf", "--dir", str(tmp_path / "runs")]) == 2
    error = capsys.readouterr().err
    assert f"{bad}: loss.NonIsotropicVMFLoss: NonIsotropicVMFLoss has no argument 'n_sample'" in error
    assert "did you mean 'n_samples'" in error
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("losses", ["", "el_nivmf,", ","])
def test_empty_names_of_losses_are_refused(losses, experiment, tmp_path, capsys):
    for name in ("compare", "sweep"):
        assert cli.main([name, experiment, "--losses", losses, "--dir", str(tmp_path / "runs")]) == 2
        assert f"--losses {losses!r} holds an empty name" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["loss.NonIsotropicVMFLos.n_samples=3"], "no loss here is of that class: did you mean 'NonIsotropicVMFLoss'"),
        (["--losses", "cos,cos"], "go by one name: cos"),
    ],
)
@pytest.mark.parametrize("command", ["compare", "sweep"])
def test_what_would_have_no_effect_on_any_loss_is_refused(experiment, command, arguments, message, capsys):
    if command == "sweep":
        with Path(experiment).open("a") as file:
            file.write("sweep: {trials: 2, space: {optimizers.proxy_lr: {log_uniform: [0.01, 1.0]}}}\n")
    assert cli.main([command, experiment, "--dry-run", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("general.run_dir=x", "choose that of several with --dir"),
        ("loss=cos", "loss=cos is not compared: choose losses with --losses"),
    ],
)
def test_a_comparison_has_its_own_options_for_place_and_losses(experiment, override, message, capsys):
    assert cli.main(["compare", experiment, override, "--dry-run"]) == 2
    assert message in capsys.readouterr().err


def test_rows_of_one_name_are_refused(experiment, tmp_path, capsys):
    """They would share folders."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.yaml").write_text("# Mine\nProxyNCALoss: {}\n")
    losses = f"{tmp_path / 'a' / 'mine.yaml'},{tmp_path / 'b' / 'mine.yaml'}"
    assert cli.main(["compare", experiment, "--dry-run", "--losses", losses]) == 2
    assert cli.main(["compare", experiment, "--dry-run", "--losses", "cos", "--vary", "general.epochs=1,1"]) == 2
    assert capsys.readouterr().err.count("two rows go by one name") == 2


def test_a_dry_run_of_a_comparison_looks_at_no_folder(experiment, tmp_path):
    command = ["compare", experiment, "--losses", "cos", "--seeds", "1", "--dir", str(tmp_path)]
    config = compose(experiment, ["loss=cos"]).config
    (tmp_path / "tiny" / "cos" / "seed-0").mkdir(parents=True)
    (tmp_path / "tiny" / "cos" / "seed-0" / "config.yaml").write_text(OmegaConf.to_yaml(config))
    assert cli.main([*command, "general.epochs=7", "--dry-run"]) == 0
    assert cli.main([*command, "general.epochs=7"]) == 2


def test_a_tilde_in_the_run_folder_is_home(experiment, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert cli.main(["run", experiment, "general.epochs=1", "general.run_dir=~/run"]) == 0
    assert (tmp_path / "home" / "run" / "summary.json").exists()
    assert not (tmp_path / "~").exists()


def test_a_plugins_trunk_may_take_features(experiment, monkeypatch):
    class Hidden(torch.nn.Sequential):
        def __init__(self, num_features):
            super().__init__(torch.nn.Linear(num_features, 5), torch.nn.ReLU())
            self.num_features = 5

    monkeypatch.setitem(registry._KINDS["trunk"], "Hidden", Hidden)
    parts = build_parts(compose(experiment, ["model.trunk={Hidden: {}}"]).config)
    assert parts.embedder.in_features == 5


def test_two_experiments_of_one_name_are_refused(experiment, tmp_path, capsys):
    other = tmp_path / "other" / "tiny.yaml"
    other.parent.mkdir()
    other.write_text(Path(experiment).read_text())
    assert cli.main(["compare", experiment, str(other), "--dir", str(tmp_path / "runs")]) == 2
    assert "two experiments would share the folder" in capsys.readouterr().err


def test_failure_in_a_comparison_is_reported(experiment, tmp_path):
    jobs = compare.plan(experiment, ["proxy_anchor"], 1, ["general.batch_size=100000"], tmp_path)
    with pytest.raises(ConfigError, match="batch_size"):
        compare.run_jobs(jobs, workers=1)


def test_plugin(experiment, tmp_path, capsys):
    plugin = tmp_path / "my_loss.py"
    plugin.write_text(
        "from pytorch_metric_learning.losses import ProxyAnchorLoss\n"
        "from pml_nivmf.experiments.registry import register\n"
        "class MyLoss(ProxyAnchorLoss):\n    pass\n"
        'register("loss", MyLoss)\n'
    )
    arguments = [
        "run",
        experiment,
        "loss={MyLoss: {alpha: 8}}",
        "general.epochs=1",
        f"general.run_dir={tmp_path / 'r'}",
    ]
    assert cli.main(arguments) == 2
    assert "unknown loss 'MyLoss'" in capsys.readouterr().err
    assert cli.main([*arguments, "--plugin", str(plugin)]) == 0
    variant = tmp_path / "mine.yaml"
    variant.write_text("# Mine\nMyLoss: {alpha: 8}\n")
    command = [
        "compare",
        experiment,
        "--losses",
        f"proxy_anchor,{variant}",
        "--seeds",
        "1",
        "--dir",
        str(tmp_path / "c"),
    ]
    assert cli.main([*command, "general.epochs=1", "--plugin", str(plugin)]) == 0
    assert (tmp_path / "c" / "tiny" / "mine" / "seed-0" / "summary.json").exists()
    registry._KINDS["loss"].pop("MyLoss")
    plugin.write_text("import no_such_module\n")
    assert cli.main([*arguments, "--plugin", str(plugin)]) == 2
    assert f"the plugin {plugin} cannot be imported: No module named 'no_such_module'" in capsys.readouterr().err
    assert cli.main([*arguments, "--plugin", str(variant)]) == 2
    assert "--plugin takes a Python file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "loss={ProxyAnchorLos: {}}",
            "command line: loss: unknown loss 'ProxyAnchorLos': did you mean 'ProxyAnchorLoss'",
        ),
        ("loss={ProxyAnchorLoss: {alfa: 3}}", "ProxyAnchorLoss has no argument 'alfa': did you mean 'alpha'"),
        ("loss={VMFProxyLoss: {distance: {KLDistanc: {}}}}", "unknown distance 'KLDistanc': did you mean 'KLDistance'"),
        ("loss={NonIsotropicVMFLoss: {temperature: -1}}", "temperature must be a positive number, got -1"),
        ("loss={os.system: {command: ls}}", "unknown loss 'os.system'"),
        ("loss={EmbeddingRegularizerMixin: {}}", "unknown loss 'EmbeddingRegularizerMixin'"),
        ("loss={BaseMetricLossFunction: {}}", "unknown loss 'BaseMetricLossFunction'"),
        ("loss={ProxyLoss: {}}", "unknown loss 'ProxyLoss'"),
        ("loss={SelfSupervisedLoss: {loss: {NTXentLoss: {}}}}", "unknown loss 'SelfSupervisedLoss'"),
        ("dataset={LabelledItems: {}}", "unknown dataset 'LabelledItems'"),
        ("miner={BaseMiner: {}}", "unknown miner 'BaseMiner'"),
        ("optimizers.model~OVERRIDE~={Optimizer: {lr: 1}}", "unknown optimizer 'Optimizer'"),
        ("evaluation.select=accuracy", "command line: evaluation.select: 'accuracy' is not computed"),
        ("evaluation.select=recal_at_1", "'recal_at_1' is not computed: did you mean 'recall_at_1'"),
        ("general.device=warp", "command line: general.device: 'warp' is no torch device"),
        ("general.device=meta", "command line: general.device: torch cannot compute on 'meta' here"),
        (
            "model.trunk={TimmTrunk: {nam: resnet18, pretrained: false}}",
            "command line: model.trunk.TimmTrunk: TimmTrunk has no argument 'nam': did you mean 'name'",
        ),
        ("optimizers.model~OVERRIDE~={Adam: {}}", "lr is missing"),
        ("schedule.scheduler={Counter: {}}", "unknown scheduler 'Counter'"),
        ("loss={VMFProxyLoss: {distance: KLDistance}}", "loss.VMFProxyLoss.distance must be one object"),
        ("loss={VMFProxyLoss: {distance: {}}}", "loss.VMFProxyLoss.distance is empty: name a distance"),
        ("general.batch_size=100000", "batch_size is 100000, and there are "),
        (
            "sampler.MPerClassSampler.m=3",
            "m_per_class must divide batch_size without any remainder (general.batch_size is 8",
        ),
        ("dataset={FeatureArrays: {npz: nowhere.npz}}", "nowhere.npz"),
        ("model=conv_net", "model.trunk: ConvNet is for images, but the data are features of width"),
        ("dataset={Glyphs: {}}", "model.trunk: Identity is for features, but the data are images"),
        ("loss={ProxyAnchorLoss: {num_classes: 3}}", "loss.ProxyAnchorLoss.num_classes is 3, but the training classes"),
        ("loss={ProxyNCALoss: {embedding_size: 3}}", "loss.ProxyNCALoss.embedding_size is 3, but model.embedding_size"),
        ("model={trunk: {Identity: {num_features: 3}}}", "model.trunk.Identity.num_features is 3, but the features"),
        ("evaluation.metrics=[recal_at_1]", "unknown metric 'recal_at_1': did you mean 'recall_at_1'"),
        ("loss={ProxyAnchorLoss: {margin: abc}}", "loss.ProxyAnchorLoss.margin must be a number, as 0.1 is, got 'abc'"),
        ("loss={VMFProxyLoss: {temperature: [1]}}", "command line: loss.VMFProxyLoss.temperature must be a number"),
        ("loss={ContrastiveLoss: {distance: {LpDistance: {p: two}}}}", "distance.LpDistance.p must be a number"),
        ("loss={VMFProxyLoss: {sparse: maybe}}", "loss.VMFProxyLoss.sparse must be true or false, as False is"),
        ("optimizers.model~OVERRIDE~={Adam: {lr: fast}}", "optimizers.model.Adam.lr must be a number"),
        (
            "loss={MultipleLosses: {losses: [{ProxyNCALoss: {}}, {ProxyNCALos: {}}]}}",
            "loss.MultipleLosses.losses[1]: unknown loss 'ProxyNCALos': did you mean 'ProxyNCALoss'",
        ),
        ("loss={CrossBatchMemory: {loss: {ProxyNCALoss: {}}}}", "CrossBatchMemory not supported for ProxyNCALoss"),
        ("optimizers.model~OVERRIDE~={SparseAdam: {lr: 1}}", "SparseAdam takes sparse gradients only"),
        ("optimizers.model~OVERRIDE~={LBFGS: {lr: 1}}", "LBFGS evaluates the model several times a step"),
        ("evaluation.retrieval=cosin", "retrieval must be one of cosine, l2, got 'cosin'"),
    ],
)
def test_bad_objects_fail_before_any_training(experiment, tmp_path, override, message, capsys):
    folder = tmp_path / "run"
    assert cli.main(["run", experiment, override, f"general.run_dir={folder}"]) == 2
    assert message in capsys.readouterr().err
    assert not folder.exists()  # once corrected, the same command finds nothing in its way


def test_text_is_no_fault_where_a_class_takes_it(monkeypatch):
    """`pretrained: bool | str = True`; and a plugin's class may take more than its default shows."""
    registry.check("trunk", {"TorchvisionTrunk": {"pretrained": "IMAGENET1K_V1"}}, "model.trunk")
    registry.check("scheduler", {"OneCycleLR": {"max_lr": 0.1, "base_momentum": [0.8, 0.9]}}, "schedule.scheduler")
    monkeypatch.setitem(registry._KINDS["loss"], "MyLoss", lambda margin=0.1: None)
    registry.check("loss", {"MyLoss": {"margin": "auto"}}, "loss")


def test_commands_that_train_nothing(experiment, capsys):
    assert cli.main(["run", experiment, "general.epochs=7", "--dry-run"]) == 0
    assert OmegaConf.create(capsys.readouterr().out).general.epochs == 7
    assert cli.main(["compare", experiment, "general.epochs=7", "--dry-run"]) == 0
    rows = [OmegaConf.create(text) for text in capsys.readouterr().out.split("---\n")[1:]]
    assert [next(iter(row.loss)) for row in rows] == ["ProxyAnchorLoss", "NonIsotropicVMFLoss"]
    assert [row.general.epochs for row in rows] == [7, 7]
    assert cli.main(["list"]) == 0
    listing = capsys.readouterr().out
    assert "glyphs" in listing
    assert "el_nivmf" in listing
    assert cli.main(["run"]) == 2
    assert cli.main(["run", "glyphs", "--resume", "x"]) == 2


def test_fake_cub_end_to_end(tmp_path):
    fakes.fake_cub(tmp_path / "data", train_classes=8, test_classes=3, images=4)
    overrides = [
        "dataset=cub",
        f"dataset.CUB.root={tmp_path / 'data'}",
        "dataset.CUB.crop_size=32",
        "dataset.CUB.resize=40",
        "general.epochs=1",
        "general.batch_size=4",
        "evaluation.metrics=[mean_average_precision_at_r]",
        "model.trunk={TimmTrunk: {name: resnet10t, pretrained: false}}",
        "model.freeze_batch_norm=true",
    ]
    summary = run.start(compose("glyphs", overrides).config, tmp_path / "run")
    assert 0 <= summary["test"]["recall_at_1"] <= 1


def test_glyphs_learn(tmp_path):
    """The embedded data set: three epochs beat an untrained network clearly."""
    overrides = ["general.epochs=3", "loss=el_nivmf_analytic", "evaluation.metrics=[mean_average_precision_at_r]"]
    config = compose("glyphs", overrides).config
    parts = build_parts(config)
    untrained = run._evaluate(parts, "test", 0)["test_recall_at_1"]
    assert run.start(config, tmp_path / "run")["test"]["recall_at_1"] > untrained + 0.15
