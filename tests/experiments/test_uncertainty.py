"""Measures of uncertainty of a run, against naive computations and PML's own losses."""

import json
import math
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pytorch_metric_learning.losses import ProxyAnchorLoss
from torch.nn import functional as F

from pml_nivmf import cli
from pml_nivmf.data.pictures import choose
from pml_nivmf.distances import ExpectedLikelihoodDistance
from pml_nivmf.experiments import evaluate, run, uncertainty
from pml_nivmf.experiments.build import build_parts
from pml_nivmf.experiments.config import ConfigError, compose
from pml_nivmf.experiments.uncertainty import retrieve
from pml_nivmf.losses import JointProxyLoss, NivMFProxyLoss, VMFProxyLoss
from pml_nivmf.metrics import CERTAINTY_METRICS, ProbabilisticAccuracyCalculator

from ..data import fakes

SCALE = 3.0  # of the loss of `features`
Z, LABELS = torch.randn(40, 8, generator=torch.Generator().manual_seed(1)), torch.arange(40) % 5


def experiment(folder, dataset, *more):
    metrics = f"metrics: [mean_average_precision_at_r], recall_at: [1], test_metrics: {list(CERTAINTY_METRICS)}"
    (folder / "tiny.yaml").write_text(
        f"description: tiny\ndataset: {dataset}\nmodel: {{embedding_size: 8}}\nevaluation: {{{metrics}}}\n"
        "general: {epochs: 1, batch_size: 8, device: cpu}\n"
    )
    return compose(str(folder / "tiny.yaml"), list(more)).config


def measure(config, folder):
    """An experiment with initial weights, and what `test_and_measure` returned and wrote."""
    parts = build_parts(config)
    embeddings = evaluate.score(parts)[1]
    metrics, measures = uncertainty.test_and_measure(parts, folder).values()
    assert measures["certainty"] == {name: metrics[name] for name in CERTAINTY_METRICS}
    items = np.load(folder / uncertainty.ITEMS)
    return SimpleNamespace(config=config, folder=folder, parts=parts, z=embeddings, measures=measures, items=items)


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    """Features that come with degraded ones."""
    folder, generator = tmp_path_factory.mktemp("features"), np.random.default_rng(0)
    clean = generator.normal(size=(8, 4)).repeat(5, axis=0) + generator.normal(size=(40, 4))
    npz = fakes.features(folder / "f.npz", x_test=clean, x_test_degraded=clean * generator.uniform(0.2, 1.2, (40, 1)))
    overrides = ["model=features", "loss=el_vmf", f"loss.VMFProxyLoss.embedding_scale={SCALE}"]
    return measure(experiment(folder, f"{{FeatureArrays: {{npz: {npz}}}}}", *overrides), folder)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Random images."""
    folder, generator = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    arrays = {f"x_{part}": generator.integers(0, 256, (48, 28, 28), dtype=np.uint8) for part in ("train", "test")}
    np.savez(folder / "o.npz", **arrays, y_train=np.arange(48) // 6, y_test=np.arange(48) // 8)
    data = f"{{Omniglot: {{npz: {folder / 'o.npz'}}}}}"
    return measure(experiment(folder, data, "model=conv_net", "loss=el_nivmf"), folder)


@torch.no_grad()
def embed(parts, items):
    return parts.embed(torch.stack([item for item, _ in items])).double()


def test_items_agree_with_a_naive_search(features):
    z, items, labels = features.z.double(), features.items, features.parts.data.test.labels.numpy()
    cosines = (F.normalize(z) @ F.normalize(z).T).fill_diagonal_(-2).numpy()
    order = np.argsort(-cosines, axis=1)[:, :5]
    assert np.array_equal(items["labels"], labels)
    assert np.array_equal(items["neighbours"], order)
    assert np.array_equal(items["correct"], labels[order[:, 0]] == labels)
    assert np.allclose(items["norm"], z.norm(dim=1), rtol=1e-5)
    assert np.allclose(items["similarity"], np.take_along_axis(cosines, order, 1), atol=1e-12)
    distance = ExpectedLikelihoodDistance()(SCALE * z, SCALE * z)[torch.arange(len(z)), torch.from_numpy(order[:, 0])]
    assert np.allclose(np.diff(items["likelihood"]), -np.diff(distance.numpy()), atol=1e-3)


@pytest.mark.parametrize("retrieval", ["cosine", "l2"])
def test_certainty_is_what_the_calculator_reports(retrieval):
    """To the last bit, although many similarities would be equal in float32."""
    labels, noise = torch.arange(200) % 20, torch.randn(220, 8, generator=torch.Generator().manual_seed(0))
    z = 5 * (torch.ones(8) + 1e-3 * (noise[200:][labels] + noise[:200]))
    calculator = ProbabilisticAccuracyCalculator(CERTAINTY_METRICS, retrieval=retrieval, device="cpu")
    retrieved = retrieve(calculator, z, labels, z, torch.arange(200))
    assert retrieved.metrics(*CERTAINTY_METRICS) == calculator.get_accuracy(z, labels)


def test_a_query_does_not_retrieve_its_origin():
    z = F.normalize(torch.randn(6, 4, generator=torch.Generator().manual_seed(0)))
    search = partial(retrieve, ProbabilisticAccuracyCalculator(device="cpu"), z, torch.tensor([0, 0, 1, 1, 2, 3]))
    origin = torch.tensor([2, 0])
    for sign in (1, -1):  # -1: the origin is the farthest item
        cosines = sign * (z[origin] @ z.T)
        cosines[[0, 1], origin] = -2
        assert torch.equal(search(sign * z[origin], origin).neighbours, cosines.topk(5).indices)
    assert search(z, torch.arange(6)).counted.tolist() == [True] * 4 + [False] * 2


def test_degraded_features_of_the_data(features):
    parts, result = features.parts, features.measures["degradation"]
    clean, degraded = embed(parts, parts.data.test), embed(parts, parts.data.test_degraded)
    for name, (before, after) in certainties(clean, degraded).items():
        assert result["overall"][name]["share_less_certain"] == pytest.approx(np.mean(after < before)), name
    assert result["recall_at_1"] == pytest.approx(features.items["correct"].mean())


def certainties(clean, degraded):
    """Every certainty of clean and degraded items; loops find the nearest clean neighbour."""
    result = np.empty((3, 2, len(clean)))
    for side, items in enumerate((clean, degraded)):
        for i, z in enumerate(items):
            cosines = F.cosine_similarity(z[None], clean)
            cosines[i] = -2
            nearest = int(cosines.argmax())
            ppk = -ExpectedLikelihoodDistance()(SCALE * z[None], SCALE * clean[nearest][None])
            result[:, side, i] = float(z.norm()), float(cosines[nearest]), float(ppk)
    return dict(zip(("norm", "similarity", "ppk"), result, strict=True))


def test_concentrations_over_classes():
    loss = NivMFProxyLoss(5, 8)
    with torch.no_grad():
        loss.log_concentration.normal_(generator=torch.Generator().manual_seed(2))
    kappa = loss.concentration.detach().numpy()
    result = uncertainty.concentration_statistics(JointProxyLoss(loss, ProxyAnchorLoss(5, 8)))
    anisotropy = kappa.std(axis=1) / kappa.mean(axis=1)
    expected = {"mean": anisotropy.mean(), "median": np.median(anisotropy), "largest": anisotropy.max()}
    assert result["anisotropy"] == pytest.approx(expected, rel=1e-5)
    assert result["concentration"]["mean"] == pytest.approx(kappa.mean(), rel=1e-5)
    assert uncertainty.concentration_statistics(VMFProxyLoss(5, 8))["anisotropy"]["largest"] == 0


def test_images_are_degraded_at_every_strength(images):
    kinds, overall = (images.measures["degradation"][key] for key in ("kinds", "overall"))
    shares = [kinds[kind]["norm"]["share_less_certain"] for kind in ("crop", "occlude", "blur", "noise")]
    assert np.shape(shares) == (4, 3)
    assert overall["norm"]["share_less_certain"] == pytest.approx(np.mean(shares))


def test_pictures_show_the_items_that_they_name(images):
    raw, items = np.load(images.config.dataset.Omniglot.npz)["x_test"], images.items
    pictures = np.load(images.folder / uncertainty.PICTURES)
    assert np.array_equal(pictures["images"][:, 0], raw[pictures["index"]])
    order = np.argsort(items["norm"], kind="stable")
    assert np.array_equal(np.stack([pictures["lowest"], pictures["highest"]]), [order[:20], order[-20:]])
    shown = {index for name in ("lowest", "highest", "by_class", "queries") for index in pictures[name].ravel()} - {-1}
    assert shown | set(items["neighbours"][pictures["queries"]].ravel()) == set(pictures["index"])
    for row in pictures["by_class"]:
        assert len(set(items["labels"][row[row >= 0]])) == 1
        assert (np.diff(items["norm"][row[row >= 0]]) >= 0).all()
    assert pictures["degraded"].shape == (4, 4, 1, 28, 28)
    assert np.array_equal(pictures["degraded"][2, 0, 0], raw[pictures["highest"][10]]), "strength 0: the image itself"


def test_queries_are_right_and_wrong_at_both_ends():
    norm = np.arange(12.0)
    items = {"norm": norm, "labels": norm * 0, "correct": norm % 2 == 0, "counted": norm < 10}
    assert set(choose(items)["queries"]) == {8, 6, 0, 2, 9, 7, 1, 3}


def test_a_report_reads_what_runs_write(features, images, tmp_path, capsys):
    runs = {"features": features.config, "images": images.config}
    summaries = [run.start(config, tmp_path / name) for name, config in runs.items()]
    assert not (tmp_path / "features" / uncertainty.PICTURES).exists()
    out = tmp_path / "report.html"
    assert cli.main(["report", *(str(tmp_path / name) for name in runs), "--out", str(out)]) == 0
    page = out.read_text()
    for part in (
        f"{100 * summaries[1]['test']['recall_at_1']:.2f}",
        'id="images"',
        "as given",
        "data:image/png;base64,",
    ):
        assert part in page


def test_undefined_metrics_are_null_in_json(tmp_path):
    """Every nearest neighbour is right: the AUROC is undefined."""
    labels = np.repeat(np.arange(8), 5)
    npz = fakes.features(tmp_path / "f.npz", x_test=100 * np.eye(8)[labels][:, :4] + labels[:, None] * 10.0)
    config = experiment(tmp_path, f"{{FeatureArrays: {{npz: {npz}, standardize: false}}}}", "model=features")
    summary = run.start(config, tmp_path / "run")
    text = (tmp_path / "run" / "summary.json").read_text()
    assert json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON")) == summary
    assert summary["test"]["certainty_auroc"] is summary["uncertainty"]["certainty"]["certainty_auroc"] is None
    assert "left_out" in summary["uncertainty"]["degradation"]


def test_an_undefined_score_still_has_an_epoch_to_test(features, tmp_path, monkeypatch):
    config, scores = features.config.copy(), iter([math.nan, 0.1, math.nan])
    config.general.epochs = 3
    monkeypatch.setattr(run, "evaluate", lambda *_: {"validation_mean_average_precision_at_r": next(scores)})
    summary = run.start(config, tmp_path / "run")
    assert (summary["best_epoch"], summary["validation_score"]) == (2, 0.1)
    history = json.loads((tmp_path / "run" / "history.json").read_text())
    assert history[0]["validation_mean_average_precision_at_r"] is None


def test_a_metric_where_lower_is_better_does_not_select(features, tmp_path):
    config = features.config.copy()
    config.evaluation.metrics, config.evaluation.select = ["aurc"], "aurc"
    with pytest.raises(ConfigError, match=r"evaluation\.select: .* lower is better for 'aurc'"):
        run.start(config, tmp_path / "run")
