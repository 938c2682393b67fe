"""Real tiny trainings, end to end: run folders, selection, resume."""

import json
import math
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from pml_nivmf import cli
from pml_nivmf.data import DegradedItems
from pml_nivmf.experiments import build, checkpoint, load_run, registry, run
from pml_nivmf.experiments.build import build_parts
from pml_nivmf.experiments.config import ConfigError, compose, variants
from pml_nivmf.experiments.evaluate import embed_items
from pml_nivmf.experiments.folders import results_folder
from pml_nivmf.experiments.train import build_trainer
from pml_nivmf.reports.page import write_report

from ..data import fakes


def test_run_folder_contains_what_is_needed_to_run_it_again(experiment, tmp_path):
    folder = tmp_path / "run"
    summary = run.start(compose(experiment).config, folder)
    assert summary["status"] == "finished"
    assert set(summary["test"]) == {"mean_average_precision_at_r", "recall_at_1", "recall_at_2"}
    assert json.loads((folder / "summary.json").read_text()) == summary
    history = json.loads((folder / "history.json").read_text())
    assert [row["epoch"] for row in history] == [1, 2, 3]
    assert set(history[0]) == {"epoch", "train_loss", *(f"validation_{name}" for name in summary["test"])}
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["seed"] == 0
    assert environment["packages"]["torch"] == torch.__version__.split("+")[0]
    assert len((folder / "records" / "metrics.csv").read_text().splitlines()) == 1 + 3
    assert (folder / "records" / "logs.db").exists()
    assert list((folder / "tensorboard").iterdir())
    assert (folder / "checkpoint.pt").exists()
    again = run.start(OmegaConf.load(folder / "config.yaml"), tmp_path / "again")
    assert again["test"] == summary["test"], "the same configuration and seed give the same numbers"


def test_test_metrics_are_those_of_the_best_validation_epoch(experiment, tmp_path):
    config = compose(experiment, ["general.epochs=6"]).config
    summary = run.start(config, tmp_path / "run")
    history = json.loads((tmp_path / "run" / "history.json").read_text())
    scores = [row["validation_mean_average_precision_at_r"] for row in history]
    assert summary["best_epoch"] == len(scores) - scores[::-1].index(max(scores)), "the later one of equal scores"
    parts = build_parts(config)
    checkpoint.load_best(parts, tmp_path / "run")
    assert run.evaluate(parts, "test") == {f"test_{k}": v for k, v in summary["test"].items()}


def test_the_paper_chooses_the_epoch_on_test_classes(experiment, tmp_path):
    """With all training classes; only if it is written out."""
    config = compose(experiment, ["general.epochs=4", "evaluation.select_on=test"]).config
    summary = run.start(config, tmp_path / "run")
    history = json.loads((tmp_path / "run" / "history.json").read_text())
    scores = [row["test_mean_average_precision_at_r"] for row in history]
    assert build_parts(config).data.num_classes == 8
    assert summary["best_epoch"] == len(scores) - scores[::-1].index(max(scores)), "the later one of equal scores"
    assert summary["test"]["mean_average_precision_at_r"] == max(scores)
    assert (summary["selected_by"], summary["validation_score"]) == ("test_mean_average_precision_at_r", None)
    page = write_report([tmp_path / "run"], tmp_path / "report.html").read_text()
    assert page.count("epoch chosen on test classes, as in the paper") == 3, "the overview, and the table twice"


def test_the_last_epoch_can_be_tested(experiment, tmp_path, results, kill_after):
    config = compose(experiment, ["evaluation.select_on=last", "schedule.patience=1"]).config
    summary = run.start(config, tmp_path / "run")
    assert (summary["best_epoch"], summary["selected_by"], summary["validation_score"]) == (3, "last epoch", None)
    with kill_after(2):
        run.start(config, tmp_path / "killed")
    run.resume(tmp_path / "killed")
    assert results(tmp_path / "killed") == results(tmp_path / "run")
    assert "the last epoch is tested" in write_report([tmp_path / "run"], tmp_path / "report.html").read_text()


def test_without_validation_classes_the_choice_must_be_written_out(experiment, tmp_path):
    config = compose(experiment, ["dataset.FeatureArrays.validation_share=0"]).config
    with pytest.raises(ConfigError, match=r"no validation classes: set validation_share, or select_on"):
        run.start(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_early_stopping(experiment, tmp_path, monkeypatch):
    scores = iter([0.5, 0.4, 0.3, 0.2, 0.1, 0.05])
    score = {"validation_mean_average_precision_at_r": 0}
    monkeypatch.setattr(run, "evaluate", lambda *_: score | {next(iter(score)): next(scores)})
    summary = run.start(compose(experiment, ["general.epochs=6", "schedule.patience=2"]).config, tmp_path / "run")
    assert (summary["epochs"], summary["best_epoch"]) == (3, 1)


def test_of_equal_scores_the_later_epoch_is_tested(experiment, tmp_path, monkeypatch):
    """Few validation classes are soon all right, when training has only begun."""
    monkeypatch.setattr(run, "evaluate", lambda *_: {"validation_mean_average_precision_at_r": 1.0})
    assert run.start(compose(experiment, ["general.epochs=3"]).config, tmp_path / "run")["best_epoch"] == 3


@pytest.mark.parametrize(
    ("epoch", "loss", "option"),
    [
        (1, "el_nivmf", "general.num_workers=1"),
        (3, "el_nivmf_sampled", "sampler=shuffle"),
        (1, "panc_el_nivmf", "sampler={FixedSetOfTriplets: {num_triplets: 40}}"),
        (1, "{CrossBatchMemory: {loss: {TripletMarginLoss: {}}, memory_size: 30}}", "sampler=default"),
        (3, "{MultipleLosses: {losses: [{TripletMarginLoss: {}}, {ProxyAnchorLoss: {}}]}}", "sampler=default"),
    ],
)
def test_resume_ends_with_the_same_numbers(experiment, tmp_path, results, kill_after, epoch, loss, option):
    config = compose(experiment, [f"loss={loss}", "general.epochs=4", option]).config
    run.start(config, tmp_path / "whole")
    with kill_after(epoch):
        run.start(config, tmp_path / "killed")
    run.resume(tmp_path / "killed")
    assert results(tmp_path / "killed") == results(tmp_path / "whole")
    rows = (tmp_path / "killed" / "records" / "metrics.csv").read_text().splitlines()
    assert len(rows) == 1 + 4, "one row for each epoch"


def test_random_views_depend_on_neither_the_number_of_workers_nor_a_resume(experiment, tmp_path, results, kill_after):
    data = fakes.features(tmp_path / "views.npz", views=3)
    one, two = (
        compose(experiment, [f"dataset.FeatureArrays.npz={data}", f"general.num_workers={workers}"]).config
        for workers in (1, 2)
    )
    run.start(one, tmp_path / "one")
    with kill_after(1):
        run.start(two, tmp_path / "two")
    run.resume(tmp_path / "two")
    assert results(tmp_path / "one") == results(tmp_path / "two")


def test_a_finished_run_can_be_trained_for_longer(experiment, tmp_path, results, capsys):
    constant = ["schedule=default"]  # a cosine schedule depends on the number of epochs
    run.start(compose(experiment, ["general.epochs=5", *constant]).config, tmp_path / "long")
    run.start(compose(experiment, ["general.epochs=2", *constant]).config, tmp_path / "short")
    assert cli.main(["run", "--resume", str(tmp_path / "short"), "general.epochs=2"]) == 2
    assert "has finished 2 epochs: set general.epochs to more, got 2" in capsys.readouterr().err
    assert cli.main(["run", "--resume", str(tmp_path / "short"), "general.batch_size=4"]) == 2
    assert "general.num_workers of a run can be changed" in capsys.readouterr().err
    assert cli.main(["run", "--resume", str(tmp_path / "short"), "general.epochs=5"]) == 0
    output = capsys.readouterr().out
    assert "epoch 2/" not in output
    assert "epoch 3/5: train_loss" in output
    assert results(tmp_path / "short") == results(tmp_path / "long")
    assert cli.main(["run", "--resume", str(tmp_path / "short")]) == 0
    assert "short is finished; general.epochs=N trains it longer" in capsys.readouterr().out


def test_a_run_that_is_trained_for_longer_continues_on_the_longer_schedule(experiment, tmp_path):
    run.start(compose(experiment, ["general.epochs=2"]).config, tmp_path / "run")
    state = checkpoint.load(tmp_path / "run")
    parts = build_parts(compose(experiment, ["general.epochs=8"]).config)
    starts = {name: [group["lr"] for group in each.param_groups] for name, each in parts.optimizers.items()}
    checkpoint.restore(parts, state, "the checkpoint")
    for name, optimizer in parts.optimizers.items():
        assert [group["lr"] for group in state[name]["param_groups"]] == pytest.approx([0] * len(starts[name]))
        expected = [lr * (1 + math.cos(math.pi * 2 / 8)) / 2 for lr in starts[name]]
        assert [group["lr"] for group in optimizer.param_groups] == pytest.approx(expected)
        moments = optimizer.state_dict()["state"][0]["exp_avg"]
        assert torch.equal(moments, state[name]["state"][0]["exp_avg"])


def test_folders_are_named_after_what_differs(experiment, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert (
        cli.main(["run", experiment, "loss=cos", "general.epochs=1", "model.embedding_size=8", "general.seed=3"]) == 0
    )
    assert Path("runs/tiny-epochs-1-embedding_size-8/cos/seed-3/summary.json").exists()
    overrides = ["general.epochs=9", "dataset.ImageFolder.root=/a/my photos", "general.device=cpu"]
    assert results_folder(None, "glyphs", overrides) == Path("runs/glyphs-my_photos-epochs-9")


def test_damaged_checkpoints(experiment, tmp_path):
    folder = tmp_path / "run"
    run.start(compose(experiment).config, folder)
    (folder / "summary.json").unlink()
    partial = folder / ".checkpoint.pt.123.partial"  # of a process that was killed
    partial.write_bytes(b"half")
    state = torch.load(folder / "checkpoint.pt", weights_only=True)
    del state["loss"]
    torch.save(state, folder / "checkpoint.pt")
    with pytest.raises(ValueError, match="does not fit the configuration of its run: 'loss'"):
        run.resume(folder)
    assert not partial.exists()
    (folder / "checkpoint.pt").write_bytes(b"half")
    with pytest.raises(ValueError, match=r"checkpoint\.pt cannot be read"):
        run.resume(folder)


def test_existing_runs_and_other_files_are_not_overwritten(experiment, tmp_path):
    config, folder = compose(experiment, ["general.epochs=1"]).config, tmp_path / "run"
    summary = run.start(config, folder)
    with pytest.raises(ConfigError, match="contains a finished run"):
        run.start(config, folder)
    assert run.resume(folder) == summary
    (folder / "summary.json").unlink()
    with pytest.raises(ConfigError, match="--resume"):
        run.start(config, folder)
    assert run.start(config, folder, overwrite=True)["test"] == summary["test"]
    with pytest.raises(ConfigError, match=r"is not a run folder \(config.yaml is missing\); a run in it is .*run$"):
        run.resume(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "best.pt").write_text("other")
    with pytest.raises(ConfigError, match="contains an unfinished run"):
        run.start(config, tmp_path / "other")


def test_resume_refuses_a_changed_configuration(experiment, tmp_path, kill_after):
    folder = tmp_path / "run"
    with kill_after(1):
        run.start(compose(experiment).config, folder)
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(text.replace("embedding_size: 16", "embedding_size: 8"))
    with pytest.raises(ConfigError, match=r"differs from the checkpoint's configuration in model\.embedding_size"):
        run.resume(folder)
    (folder / "config.yaml").write_text(text.replace("epochs:", "epoch:"))
    with pytest.raises(ConfigError, match=r"unknown key 'general\.epoch': did you mean 'epochs'"):
        run.resume(folder)


@pytest.mark.parametrize("loss", variants("loss"))
def test_every_loss_variant_trains(experiment, tmp_path, loss):
    miner = {"margin": ["miner=distance_weighted"], "multi_similarity": ["miner=multi_similarity"]}.get(loss, [])
    size = ["model.embedding_size=128"] if loss.endswith("_paper") else []  # of the paper's fit of log C_M
    config = compose(experiment, [f"loss={loss}", "general.epochs=1", *miner, *size]).config
    assert 0 <= run.start(config, tmp_path / "run")["test"]["recall_at_1"] <= 1


def test_separate_rates_and_clipping(experiment):
    loss = "{MultipleLosses: {losses: [{ProxyAnchorLoss: {}}, {TripletMarginLoss: {}}, {NivMFProxyLoss: {}}]}}"
    rates = ["optimizers.proxy_lr=0.5", "optimizers.concentration_lr=0.25", "optimizers.temperature_lr=0.125"]
    head = ["optimizers.embedder_lr=0.0625", "optimizers.clip_norm=1.0"]
    parts = build_parts(compose(experiment, [f"loss={loss}", *rates, *head]).config)
    groups = parts.optimizers["metric_loss_optimizer"].param_groups
    assert sorted(group["lr"] for group in groups for _ in group["params"]) == [0.125, 0.25, 0.5, 0.5]
    assert parts.optimizers["embedder_optimizer"].param_groups[0]["lr"] == 0.0625
    trainer = build_trainer(compose(experiment).config, parts, bool)
    for parameter in parts.embedder.parameters():
        parameter.grad = torch.ones_like(parameter)
    trainer.clip_gradients()
    gradients = torch.cat([parameter.grad.flatten() for parameter in parts.embedder.parameters()])
    assert gradients.norm() == pytest.approx(1.0)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_sparse_gradients(experiment, tmp_path):
    sparse = "loss={NonIsotropicVMFLoss: {softmax: {SampledSoftmax: {n_negatives: 2, sparse: true}}}}"
    options = [sparse, "optimizers.model~OVERRIDE~={Adagrad: {lr: 0.01}}", "optimizers.clip_norm=10"]
    run.start(compose(experiment, options).config, tmp_path / "run")
    history = json.loads((tmp_path / "run" / "history.json").read_text())
    assert history[-1]["train_loss"] < history[0]["train_loss"]


def test_batch_larger_than_the_data(experiment):
    config = compose(experiment, ["sampler=shuffle", "general.batch_size=100000"]).config
    with pytest.raises(ConfigError, match=r"general\.batch_size: 100000 is more than the \d+ training items"):
        build_parts(config)


def test_trunk_of_a_plugin_may_take_features(experiment, monkeypatch):
    class Hidden(torch.nn.Sequential):
        def __init__(self, num_features):
            super().__init__(torch.nn.Linear(num_features, 5), torch.nn.ReLU())
            self.num_features = 5

    monkeypatch.setitem(registry._KINDS["trunk"], "Hidden", Hidden)
    parts = build_parts(compose(experiment, ["model.trunk={Hidden: {}}"]).config)
    assert parts.embedder.in_features == 5


def test_fake_cub_with_frozen_batch_norm(tmp_path):
    fakes.fake_cub(tmp_path / "data", train_classes=8, test_classes=3, images=4)
    overrides = [
        "dataset=cub",
        f"dataset.CUB.root={tmp_path / 'data'}",
        "dataset.CUB.crop_size=32",
        "dataset.CUB.resize=40",
        "general.epochs=1",
        "general.batch_size=4",
        "evaluation.metrics=[mean_average_precision_at_r]",
        "model.trunk={TimmTrunk: {name: test_efficientnet, pretrained: false}}",
        "model.freeze_batch_norm=true",
    ]
    config = compose("glyphs", overrides).config
    assert 0 <= run.start(config, tmp_path / "run")["test"]["recall_at_1"] <= 1
    parts = build_parts(config)
    build_trainer(config, parts, bool).set_to_train()
    assert parts.trunk.training
    layers = [layer for layer in parts.trunk.modules() if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm)]
    assert layers
    assert not any(layer.training for layer in layers)


def test_glyphs_learn(tmp_path):
    """Four epochs on a part of the embedded data set are clearly better than an untrained network."""
    small = ["dataset.Glyphs.size=20", "dataset.Glyphs.instances=10", "model.trunk.ConvNet.width=32"]
    metrics = "evaluation.metrics=[mean_average_precision_at_r]"
    config = compose("glyphs", ["general.epochs=4", *small, metrics]).config
    untrained = run.evaluate(build.build_parts(config), "test")["test_recall_at_1"]
    assert run.start(config, tmp_path / "run")["test"]["recall_at_1"] > untrained + 0.15


def test_norms_are_fitted_after_training_and_saved(tmp_path):
    """Crops of unseen characters get smaller norms; retrieval stays the same; resuming repeats the numbers."""
    settings = ["dataset.Glyphs.instances=4", "general.epochs=2", "evaluation.gallery_shots=[]"]
    summaries, ratios = {}, {}
    for fit in (False, True):
        config = compose("glyphs", [*settings, f"model.fit_norms={fit}"]).config
        summaries[fit] = run.start(config, tmp_path / f"{fit}")
        parts = load_run(tmp_path / f"{fit}").parts
        versions = (parts.data.test, DegradedItems(parts.data.test, "crop", 0.75))
        norms, degraded = (embed_items(parts, items)[0].norm(dim=1) for items in versions)
        ratios[fit] = float((degraded / norms).log().mean())
    assert summaries[True]["test"] == summaries[False]["test"]
    assert ratios[True] < ratios[False]
    (tmp_path / "True" / "summary.json").unlink()  # killed before its last step
    assert run.resume(tmp_path / "True")["uncertainty"] == summaries[True]["uncertainty"]


def test_norms_need_something_degraded(experiment, tmp_path):
    with pytest.raises(ConfigError, match=r"model\.fit_norms needs images, or degraded training items"):
        run.start(compose(experiment, ["model.fit_norms=true"]).config, tmp_path / "run")
