"""Saved weights scored again: the same numbers, other retrieval, training images, class splits together."""

import json
import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from pml_nivmf import cli
from pml_nivmf.experiments import checkpoint, compare, rescore, run
from pml_nivmf.experiments.build import build_parts
from pml_nivmf.experiments.config import compose
from pml_nivmf.experiments.evaluate import score
from pml_nivmf.metrics import feature_diversity
from pml_nivmf.reports.run_folders import read_runs
from pml_nivmf.reports.view import weight_scores


def summary_of(folder):
    return json.loads((folder / "summary.json").read_text())


def embeddings_of(job):
    parts = build_parts(job.config)
    checkpoint.load_best(parts, job.folder)
    return parts, *score(parts)[1:]


@pytest.fixture(scope="module")
def runs(experiment, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    jobs = compare.plan(experiment, ["cos", "el_nivmf"], 1, ["general.epochs=2"], folder)
    for job in jobs:
        run.start(job.config, job.folder)
    return jobs


def test_evaluate(runs, tmp_path, capsys):
    before = summary_of(runs[0].folder)
    folder = runs[0].folder.parents[1]
    command = ["evaluate", str(folder), "evaluation=l2", "--baseline", str(runs[0].folder), "--dir", str(tmp_path)]
    assert cli.main(command) == 0
    assert (tmp_path / "norms_by_errors_of_baseline.png").exists()
    assert (tmp_path / "report.html").exists()
    assert "R@1" in capsys.readouterr().out
    for job in runs:
        again = summary_of(tmp_path / job.label / "seed-0")
        _, embeddings, labels = embeddings_of(job)
        distances = torch.cdist(embeddings, embeddings).fill_diagonal_(torch.inf)
        right = (labels[distances.argmin(dim=1)] == labels).double().mean()
        assert again["test"]["recall_at_1"] == pytest.approx(float(right))
        assert (tmp_path / job.label / "seed-0" / "test_items.npz").exists()
    rescore.rescore([folder], [], tmp_path / "same")
    assert summary_of(tmp_path / "same" / "cos" / "seed-0")["test"] == before["test"]
    for wrong, message in (
        ([str(folder), "loss=cos"], "only evaluation, dataset, general of a run can be changed"),
        ([str(folder), "--dir", str(folder)], "contains the weights of a run"),
    ):
        assert cli.main(["evaluate", *wrong]) == 2
        assert message in capsys.readouterr().err


def test_training_images(runs, tmp_path, npz):
    for images in ("train", "crops"):
        rescore.rescore([runs[1].folder], ["evaluation=diversity"], tmp_path / images, images)
    plain, crops = (next((tmp_path / images).rglob("summary.json")).parent for images in ("train", "crops"))
    parts, *_ = embeddings_of(runs[1])
    inputs = torch.stack([parts.data.train_plain[index][0] for index in range(len(parts.data.train))])
    expected = feature_diversity(F.normalize(parts.embed(inputs).detach()))
    assert summary_of(plain)["test"]["feature_diversity"] == pytest.approx(expected, rel=1e-4)
    assert summary_of(plain)["images"] == "training images"
    assert len(np.load(crops / "test_items.npz")["labels"]) == len(parts.data.train)


def test_training_crops_are_the_same_every_time(tmp_path):
    data = rescore._with_images(build_parts(compose("glyphs", ["dataset.Glyphs.instances=2"]).config).data, "crops")
    state = torch.get_rng_state()
    assert torch.equal(data.test[3][0], data.test[3][0])
    assert not torch.equal(data.test[3][0], data.train_plain[3][0])
    assert torch.equal(state, torch.get_rng_state())
    assert data.train.seed is None


def test_class_splits(experiment, tmp_path, in_process, capsys):
    """Four trainings that hold out other classes, and a row for all embeddings together."""
    options = ["general.epochs=1", "dataset.splits=4", "general.batch_size=4", "--losses", "cos", "--seeds", "1"]
    assert cli.main(["compare", experiment, *options, "--dir", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "tiny" / "comparison.json").read_text())
    assert [row["loss"] for row in rows] == [*(f"cos-split-{number}" for number in range(4)), "cos-concatenated"]
    jobs = compare.plan(experiment, ["cos"], 1, options[:3], tmp_path / "tiny")
    parts, embeddings, labels = zip(*map(embeddings_of, jobs), strict=True)
    assert [part.data.num_classes for part in parts] == [6] * 4
    cosines = sum(F.normalize(each) @ F.normalize(each).T for each in embeddings).fill_diagonal_(-torch.inf)
    right = (labels[0][cosines.argmax(dim=1)] == labels[0]).double().mean()
    together = summary_of(tmp_path / "tiny" / "cos-concatenated" / "seed-0")
    assert together["test"]["recall_at_1"] == pytest.approx(float(right))
    assert cli.main(["run", experiment, "dataset.splits=4", f"general.run_dir={tmp_path / 'run'}"]) == 2
    assert "split must be 0 … 3, because splits is 4; got None" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_weight_of_the_guidance(experiment, tmp_path, in_process, capsys):
    """A comparison by the paper's protocol says so, and its figure has ω = 0 and ProxyAnchor at the ends."""
    vary = ["--vary", "loss.JointProxyLoss.weight=0.1,10", "--losses", "el_nivmf,panc_el_nivmf,proxy_anchor"]
    options = ["general.epochs=1", "evaluation.select_on=test", "--seeds", "1", "--dir", str(tmp_path)]
    assert cli.main(["compare", experiment, *vary, *options]) == 0
    note = "epoch chosen on test classes, as in the paper"
    assert note in " ".join(capsys.readouterr().out.split())
    assert (tmp_path / "tiny" / "comparison.md").read_text().endswith(f"\n{note}\n")
    scores = weight_scores(read_runs([tmp_path / "tiny"]))
    assert list(scores) == [0.0, 0.1, 10, math.inf]
    expected = summary_of(tmp_path / "tiny" / "panc_el_nivmf-weight-10" / "seed-0")["test"]["recall_at_1"]
    assert scores[10] == [100 * expected]
    drawn = ["figures", "--omega", str(tmp_path / "tiny"), "--dir", str(tmp_path)]
    assert cli.main(drawn) == 0
    assert (tmp_path / "omega.png").exists()
