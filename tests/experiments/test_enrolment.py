"""Galleries in runs: metrics of k-shot galleries, finished runs as objects, and the commands enrol and identify."""

import contextlib
import csv
import json

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from pml_nivmf import cli
from pml_nivmf.experiments import evaluate, load_run, run
from pml_nivmf.experiments.config import compose
from pml_nivmf.inference import ClassGallery
from pml_nivmf.metrics import draw_gallery
from pml_nivmf.models import ConvNet

from ..data import fakes


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A folder of training images, and a run on them: a class is a shade."""
    root = tmp_path_factory.mktemp("images")
    for label in range(12):
        for i in range(4):
            fakes.write_image(root / "all" / f"shade {label}" / f"{i}.png", shade=20 * label + i, size=(12, 12))
    experiment = root / "shades.yaml"
    experiment.write_text(
        f"""
description: shades
groups: {{dataset: image_folder, model: conv_net, sampler: shuffle, optimizers: from_scratch, loss: el_nivmf}}
dataset: {{ImageFolder: {{root: {root / "all"}, crop_size: 8, resize: 8, test_share: 0.34}}}}
model: {{embedding_size: 8, trunk: {{ConvNet: {{width: 4}}}}}}
evaluation: {{gallery_shots: [1, 2], degradation: false}}
general: {{epochs: 1, batch_size: 8, device: cpu}}
"""
    )
    run.start(compose(str(experiment), []).config, root / "run")
    return root


def test_summary_has_metrics_of_galleries(images):
    test = json.loads((images / "run" / "summary.json").read_text())["test"]
    for shots in (1, 2):
        assert 0 <= test[f"gallery_{shots}_shot_accuracy"] <= 1
        assert test[f"gallery_{shots}_shot_nll"] > 0


def test_a_run_is_loaded_with_its_best_weights(images):
    loaded = load_run(images / "run")
    weights = torch.load(images / "run" / "best.pt", weights_only=True)
    for name, module in (("trunk", loaded.trunk), ("embedder", loaded.embedder), ("loss", loaded.loss)):
        torch.testing.assert_close(module.state_dict(), weights[name])
        assert not module.training
    assert set(loaded.class_names) < {f"shade {label}" for label in range(12)}
    test = loaded.parts.data.test
    path = test.items.paths[int(test.indices[0])]
    assert torch.equal(loaded.read_image(path), test[0][0])
    embedding = loaded.inference_model.get_embeddings(test[0][0].unsqueeze(0))
    torch.testing.assert_close(embedding.norm(dim=1), torch.ones(1))
    with pytest.raises(ValueError, match="not a run folder"):
        load_run(images)


def test_exported_models_take_any_batch_size(images, tmp_path, capsys, monkeypatch):
    command = ["export", str(images / "run"), str(tmp_path / "model.pt")]
    assert cli.main(command) == 0
    assert "inputs (batch, 3, 8, 8)" in capsys.readouterr().out
    model, embed = torch.export.load(tmp_path / "model.pt").module(), load_run(images / "run").parts.embed
    for size in (1, 5):
        batch = torch.randn(size, 3, 8, 8)
        torch.testing.assert_close(model(batch), embed(batch))
    forward = ConvNet.forward
    monkeypatch.setattr(ConvNet, "forward", lambda self, x: forward(self, x if x.sum().item() > 0 else -x))
    assert cli.main(command) == 2
    assert "torch.export cannot export ConvNet: " in capsys.readouterr().err


def test_enrol_and_identify_images(images, tmp_path, capsys):
    gallery = tmp_path / "gallery.safetensors"
    for label in (3, 90, 160):
        for i in range(3):
            fakes.write_image(tmp_path / "new" / f"red {label}" / f"{i}.png", shade=label + 2 * i)
    (tmp_path / "new" / "red 3" / "broken.png").write_text("no image")
    assert cli.main(["enrol", str(images / "run"), str(tmp_path / "new"), "--to", str(gallery)]) == 0
    printed = capsys.readouterr()
    assert "9 images of 3 classes" in printed.out
    assert "skipped: cannot read the image" in printed.err
    assert "broken.png" in printed.err
    queries = [str(fakes.write_image(tmp_path / f"query {shade}.png", shade)) for shade in (5, 93)]
    outputs = ["--html", str(tmp_path / "sheet.html"), "--csv", str(tmp_path / "table.csv")]
    assert cli.main(["identify", str(gallery), *queries, "--precision", "0.5", *outputs]) == 0
    out = capsys.readouterr().out
    rows = list(csv.DictReader((tmp_path / "table.csv").open()))
    assert [row["image"] for row in rows] == queries
    loaded = load_run(images / "run")
    embeddings = loaded.parts.embed(torch.stack([loaded.read_image(query) for query in queries])).detach()
    answers = ClassGallery.load(gallery).identify(embeddings, precision=0.5)
    assert [row["most_probable"] for row in rows] == [answer.best for answer in answers]
    assert all(f"{query}: " in out for query in queries)
    refusals = [answer.refusal for answer in answers if answer.refusal]
    assert f"{2 - len(refusals)} of 2 answered" in out
    assert ("a lower one answers more" in out) == ("too uncertain" in refusals)
    page = (tmp_path / "sheet.html").read_text()
    assert page.count("<img") == 2 + sum(len(answer.evidence) for answer in answers)


def test_enrol_and_identify_embeddings(images, tmp_path, capsys):
    arrays = {"embeddings": np.random.default_rng(0).normal(size=(6, 8)), "labels": np.array(["a", "b", "c"] * 2)}
    np.savez(tmp_path / "new.npz", **arrays)
    gallery = str(tmp_path / "gallery.safetensors")
    assert cli.main(["enrol", str(images / "run"), str(tmp_path / "new.npz"), "--to", gallery]) == 0
    assert cli.main(["identify", gallery, str(tmp_path / "new.npz")]) == 0
    assert capsys.readouterr().out.count("new.npz[") == 6


def test_a_lower_precision_is_advised_only_where_it_helps(images, tmp_path, capsys):
    directions = np.eye(8)[:4] + np.random.default_rng(0).normal(scale=0.05, size=(6, 4, 8))
    np.savez(tmp_path / "new.npz", embeddings=directions[:, :3].reshape(-1, 8), labels=np.array(["a", "b", "c"] * 6))
    np.savez(tmp_path / "far.npz", embeddings=directions[:, 3])  # of a class that is not enrolled
    gallery = str(tmp_path / "gallery.safetensors")
    assert cli.main(["enrol", str(images / "run"), str(tmp_path / "new.npz"), "--to", gallery]) == 0
    assert cli.main(["identify", gallery, str(tmp_path / "far.npz"), "--precision", "0.01"]) == 0
    out = capsys.readouterr().out
    assert out.count("refused as probably not enrolled") == 6
    assert out.endswith("0 of 6 answered with --precision 0.01\n")


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (["enrol", "{run}", "{tmp}/missing"], "argument FOLDER: {tmp}/missing does not exist"),
        (["enrol", "{run}/..", "{tmp}/wide.npz"], "(config.yaml is missing); a run in it is {run}/../run"),
        (["enrol", "{tmp}", "{run}"], "is not a run folder"),
        (["enrol", "{run}", "{tmp}/wide.npz"], "must have the arrays embeddings and labels, but lacks labels"),
        (["identify", "{tmp}/missing", "{tmp}/x.png"], "argument GALLERY: {tmp}/missing does not exist"),
        (["identify", "{tmp}/g", "{tmp}/x.png"], "none of 1 images can be read"),
        (["identify", "{tmp}/g", "{tmp}/x.png", "--precision", "95"], "precision must be at most 1, got 95.0"),
        (["identify", "{tmp}/g", "{tmp}/x.png", "--run", "{tmp}/moved"], "moved does not exist: name its folder with"),
        (["identify", "{tmp}/g", "{tmp}/wide.npz"], "queries must have 8 columns, as the enrolled ones, got 9"),
    ],
)
def test_errors_are_one_line(images, tmp_path, capsys, command, problem):
    np.savez(tmp_path / "wide.npz", embeddings=np.ones((2, 9)))
    gallery = ClassGallery()
    gallery.info = {"run": str(images / "run")}
    gallery.add(torch.randn(4, 8), [0, 0, 1, 1])
    gallery.fit().save(tmp_path / "g")
    (tmp_path / "x.png").write_text("not an image")
    names = {"run": images / "run", "tmp": tmp_path}
    with contextlib.suppress(SystemExit):  # of argparse
        assert cli.main([part.format(**names) for part in command]) != 0
    assert problem.format(**names) in capsys.readouterr().err.splitlines()[-1]


def test_nearest_neighbour_beside_a_gallery(images):
    embeddings, labels = evaluate.score(load_run(images / "run").parts)[1:]
    right = []
    for seed in range(3):
        rows, queries = draw_gallery(labels, 2, seed)
        nearest = [max(rows, key=lambda row: F.cosine_similarity(embeddings[row], q, 0)) for q in embeddings[queries]]
        right.append(np.mean([labels[row] == labels[query] for row, query in zip(nearest, queries, strict=True)]))
    test = json.loads((images / "run" / "summary.json").read_text())["test"]
    assert test["gallery_2_shot_nearest_neighbour"] == pytest.approx(np.mean(right))
