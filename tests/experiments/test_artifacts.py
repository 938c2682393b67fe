"""What a finished run leaves for its report, against naive computations and PML's own losses."""

import json
import math

import numpy as np
import pytest
import torch
from pytorch_metric_learning.losses import MultiSimilarityLoss, ProxyAnchorLoss, ProxyNCALoss
from scipy import stats
from torch.nn import functional as F

from pml_nivmf import cli
from pml_nivmf.distances import ExpectedLikelihoodDistance
from pml_nivmf.experiments import artifacts, checkpoint, closed_set, degradation, pictures, run, state
from pml_nivmf.experiments.build import build_parts
from pml_nivmf.experiments.config import compose
from pml_nivmf.experiments.errors import ConfigError
from pml_nivmf.experiments.retrieved import Gallery, Retrieved
from pml_nivmf.losses import JointProxyLoss, NivMFProxyLoss, NonIsotropicVMFLoss, VMFProxyLoss
from pml_nivmf.metrics import CERTAINTY_METRICS, ProbabilisticAccuracyCalculator, lower_is_better

from ..data import fakes


def experiment(folder, dataset, *more):
    path = folder / "tiny.yaml"
    path.write_text(
        f"""
description: tiny
dataset: {dataset}
model: {{embedding_size: 8}}
evaluation: {{metrics: [mean_average_precision_at_r], recall_at: [1], test_metrics: {list(CERTAINTY_METRICS)}}}
general: {{epochs: 1, batch_size: 8, device: cpu}}
"""
    )
    return compose(str(path), list(more)).config


@pytest.fixture(scope="module")
def features_run(tmp_path_factory):
    """Features with degraded ones, and a loss that scales embeddings by 3: (config, folder, summary)."""
    folder = tmp_path_factory.mktemp("features")
    chance = np.random.default_rng(0)
    centres = chance.normal(size=(8, 4)).repeat(5, axis=0)
    clean = (centres + chance.normal(size=(40, 4))).astype(np.float32)
    npz = fakes.features(folder / "f.npz", x_test=clean, x_test_degraded=clean * chance.uniform(0.2, 1.2, (40, 1)))
    overrides = ["model=features", "loss=el_vmf", "loss.VMFProxyLoss.embedding_scale=3.0"]
    config = experiment(folder, f"{{FeatureArrays: {{npz: {npz}}}}}", *overrides)
    return config, folder / "run", run.start(config, folder / "run")


@pytest.fixture(scope="module")
def images_run(tmp_path_factory):
    """Random pictures on a conv net: (config, folder, summary)."""
    folder = tmp_path_factory.mktemp("images")
    chance = np.random.default_rng(0)
    arrays = {f"x_{part}": chance.integers(0, 256, (48, 28, 28), dtype=np.uint8) for part in ("train", "test")}
    np.savez(folder / "o.npz", **arrays, y_train=np.arange(48) // 6, y_test=np.arange(48) // 8)
    config = experiment(folder, f"{{Omniglot: {{npz: {folder / 'o.npz'}}}}}", "model=conv_net", "loss=el_nivmf")
    return config, folder / "run", run.start(config, folder / "run")


def embedded(config, folder, split="test"):
    parts = build_parts(config)
    best = torch.load(folder / "best.pt", weights_only=True)
    state.load_weights(parts, best, "best.pt")
    with torch.no_grad():
        return artifacts.embed_items(parts, getattr(parts.data, split))[0].double(), parts


# what was retrieved ---------------------------------------------------------------------------------------------


def test_items_agree_with_a_naive_search(features_run):
    config, folder, summary = features_run
    z, parts = embedded(config, folder)
    items = np.load(folder / "test_items.npz")
    labels = parts.data.test.labels.numpy()
    assert np.array_equal(items["labels"], labels)
    assert np.allclose(items["norm"], z.norm(dim=1), rtol=1e-5)
    cosines = (F.normalize(z) @ F.normalize(z).T).fill_diagonal_(-2).numpy()
    order = np.argsort(-cosines, axis=1)[:, :5]
    assert np.array_equal(items["neighbours"], order)
    assert np.allclose(items["similarity"], np.take_along_axis(cosines, order, 1), atol=1e-5)
    assert np.array_equal(items["correct"], labels[order[:, 0]] == labels)
    assert items["counted"].all()
    assert items["correct"].mean() == pytest.approx(summary["test"]["recall_at_1"])
    distance = ExpectedLikelihoodDistance()(3 * z, 3 * z)[torch.arange(len(z)), torch.from_numpy(order[:, 0])]
    assert np.allclose(np.diff(items["likelihood"]), -np.diff(distance.numpy()), atol=1e-3)


def test_certainty_is_what_the_test_metrics_say(features_run):
    """By another way: the calculator's, with the loss's scale."""
    _, _, summary = features_run
    certainty = summary["uncertainty"]["certainty"]
    assert set(certainty) == set(CERTAINTY_METRICS)
    for name, value in certainty.items():
        assert value == pytest.approx(summary["test"][name], abs=1e-6), name


def test_a_query_is_not_its_own_answer_however_far_it_is():
    z = F.normalize(torch.randn(6, 4, generator=torch.Generator().manual_seed(0)))
    gallery = Gallery(z, torch.tensor([0, 0, 1, 1, 2, 3]), ProbabilisticAccuracyCalculator(), 1.0)
    own = torch.tensor([2, 0])
    near = gallery.retrieve(z[own], own)
    far = gallery.retrieve(-z[own], own)
    for found, sign in ((near, 1), (far, -1)):
        assert not (found.neighbours == own[:, None]).any()
        cosines = sign * (z[own] @ z.T)
        cosines[[0, 1], own] = -2
        assert torch.equal(found.neighbours, cosines.topk(5).indices)
    assert near.counted.tolist() == [True, True]
    assert gallery.retrieve(z, torch.arange(6)).counted.tolist() == [True] * 4 + [False] * 2


# degradation ----------------------------------------------------------------------------------------------------


def test_given_degradation(features_run):
    config, folder, summary = features_run
    found = summary["uncertainty"]["degradation"]
    clean, degraded = embedded(config, folder)[0], embedded(config, folder, "test_degraded")[0]
    lower = (degraded.norm(dim=1) < clean.norm(dim=1)).double().mean().item()
    assert 0 < lower < 1
    assert found["kinds"]["as given"]["norm"]["share_less_certain"] == [pytest.approx(lower)]
    assert found["overall"]["norm"]["share_less_certain"] == pytest.approx(lower)
    for name, (before, after) in competing(clean, degraded).items():
        spearman = stats.spearmanr([0] * 40 + [1] * 40, np.concatenate([before, after])).statistic
        assert found["overall"][name]["spearman"] == pytest.approx(spearman, abs=1e-6), name
        drops = np.mean(after < before)
        assert found["overall"][name]["share_less_certain"] == pytest.approx(drops), name
    ratio = (degraded.norm(dim=1) / clean.norm(dim=1)).median().item()
    assert found["kinds"]["as given"]["norm"]["relative_median"] == [pytest.approx(ratio, rel=1e-4)]
    assert found["recall_at_1"] == pytest.approx(summary["test"]["recall_at_1"])


def competing(clean, degraded):
    """Every certainty of clean and degraded items, their nearest clean neighbour found by loops."""
    distance = ExpectedLikelihoodDistance()
    found = {"norm": ([], []), "similarity": ([], []), "ppk": ([], [])}
    for side, items in enumerate((clean, degraded)):
        for i, z in enumerate(items):
            cosines = F.cosine_similarity(z[None], clean)
            cosines[i] = -2
            nearest = int(cosines.argmax())
            found["norm"][side].append(float(z.norm()))
            found["similarity"][side].append(float(cosines[nearest]))
            found["ppk"][side].append(-float(distance(3 * z[None], 3 * clean[nearest][None])))
    return {name: tuple(map(np.array, sides)) for name, sides in found.items()}


def test_images_are_degraded_at_every_strength(images_run):
    _, _, summary = images_run
    found = summary["uncertainty"]["degradation"]
    assert found["items"] == 48
    assert set(found["kinds"]) == {"crop", "occlude", "blur", "noise"}
    shares = [k["norm"]["share_less_certain"] for k in found["kinds"].values()]
    assert np.shape(shares) == (4, 3)
    assert found["overall"]["norm"]["share_less_certain"] == pytest.approx(np.mean(shares))
    spearman = np.mean([kind["norm"]["spearman"] for kind in found["kinds"].values()])
    assert found["overall"]["norm"]["spearman"] == pytest.approx(spearman)


def test_a_certainty_that_follows_the_strength_is_told_from_one_that_does_not():
    def found(norm):
        one = torch.ones(4)
        return Retrieved(one.long(), one[:, None].long(), one[:, None], one > 0, one > 0, norm, one)

    clean = torch.tensor([4.0, 5, 6, 7])
    result = degradation.compare(found(clean), [found(clean - 10), found(clean - 20)], (0.3, 0.6))
    assert result["norm"]["share_less_certain"] == [1, 1]
    assert result["norm"]["spearman"] < -0.9
    assert result["similarity"]["share_less_certain"] == [0, 0]
    assert math.isnan(result["similarity"]["spearman"]), "constant: undefined"


# proxies --------------------------------------------------------------------------------------------------------

Z, LABELS = torch.randn(40, 8, generator=torch.Generator().manual_seed(1)), torch.arange(40) % 5


@pytest.mark.parametrize(
    "loss",
    [
        ProxyNCALoss(5, 8, softmax_scale=3),
        VMFProxyLoss(5, 8, embedding_scale=2.0),
        NonIsotropicVMFLoss(5, 8, estimator="analytic", embedding_scale=2.0),
    ],
    ids=lambda loss: type(loss).__name__,
)
def test_logits_are_those_of_the_softmax_that_is_trained(loss):
    logits = closed_set.softmax_logits(loss, Z)
    assert F.cross_entropy(logits, LABELS).item() == pytest.approx(loss(Z, LABELS).item(), rel=1e-5)
    found = closed_set.calibration(loss, Z, LABELS)
    probabilities = logits.softmax(1)
    assert found["accuracy"] == pytest.approx((probabilities.argmax(1) == LABELS).float().mean().item())
    assert found["confidence"] == pytest.approx(probabilities.max(1).values.mean().item(), rel=1e-5)
    assert 0 <= found["expected_calibration_error"] <= 1


def test_calibration_leaves_chance_alone_and_says_what_is_missing():
    before = torch.get_rng_state()
    loss = NonIsotropicVMFLoss(5, 8, embedding_scale=2.0)
    state = torch.get_rng_state()
    assert closed_set.calibration(loss, Z, LABELS) == closed_set.calibration(loss, Z, LABELS)
    assert torch.equal(torch.get_rng_state(), state)
    torch.set_rng_state(before)
    for none in (ProxyAnchorLoss(5, 8), MultiSimilarityLoss()):
        assert closed_set.calibration(none, Z, LABELS)["left_out"].startswith(type(none).__name__)
        assert "left_out" in closed_set.concentrations(none)


def test_calibration_on_images_that_training_did_not_see(features_run, tmp_path):
    """The softmax over proxies by hand, on the closed set; without one, on training images, and it is said."""
    assert features_run[2]["uncertainty"]["calibration"]["images"] == "training images, without augmentation"
    config = features_run[0].copy()
    config.evaluation.closed_set_share = 0.4
    found = run.start(config, tmp_path / "run")["uncertainty"]["calibration"]
    assert found["images"] == "images of the training classes that training did not see"
    z, parts = embedded(config, tmp_path / "run", "closed_set")
    labels = np.array([label for _, label in parts.data.closed_set])
    assert found["items"] == len(labels) > 5
    assert len(parts.data.train) + len(labels) == len(build_parts(features_run[0]).data.train)
    logits = parts.loss.get_logits(z.float()).detach().double().numpy()
    probabilities = np.exp(logits - logits.max(1, keepdims=True))
    probabilities /= probabilities.sum(1, keepdims=True)
    right, confidence = probabilities.argmax(1) == labels, probabilities.max(1)
    place = np.ceil(15 * confidence)
    gaps = [abs((right - confidence)[place == b].sum()) for b in np.unique(place)]
    assert found["expected_calibration_error"] == pytest.approx(sum(gaps) / len(labels), abs=1e-5)
    assert found["accuracy"] == pytest.approx(right.mean())


@pytest.mark.parametrize(
    ("share", "message"),
    [
        ("-0.1", "closed_set_share must be at least 0, got -0.1"),
        ("0.6", "closed_set_share must be at most 0.5, got 0.6"),
        ("nan", "closed_set_share must be at least 0, got nan"),
        ("0.01", "closed_set_share: a share of 0.01 of each class's images is less than one image: raise it"),
    ],
)
def test_closed_sets_that_cannot_be(features_run, share, message):
    npz = features_run[0].dataset.FeatureArrays.npz
    with pytest.raises(ConfigError, match=message):
        build_parts(
            experiment(
                features_run[1].parent,
                f"{{FeatureArrays: {{npz: {npz}}}}}",
                "model=features",
                f"evaluation.closed_set_share={share}",
            )
        )


def test_concentrations_are_summed_up_over_classes():
    loss = NivMFProxyLoss(5, 8)
    with torch.no_grad():
        loss.log_concentration.normal_(generator=torch.Generator().manual_seed(2))
    kappa = loss.concentration.detach().numpy()
    found = closed_set.concentrations(JointProxyLoss(loss, ProxyAnchorLoss(5, 8)))
    spread = kappa.std(axis=1) / kappa.mean(axis=1)
    assert found["anisotropy"]["median"] == pytest.approx(np.median(spread), rel=1e-5)
    assert found["anisotropy"]["largest"] == pytest.approx(spread.max(), rel=1e-5)
    assert found["concentration"]["mean"] == pytest.approx(kappa.mean(), rel=1e-5)
    assert "anisotropy" not in closed_set.concentrations(VMFProxyLoss(5, 8)), "one concentration a class has no shape"


# pictures -------------------------------------------------------------------------------------------------------


def test_pictures_are_of_the_items_they_say(images_run):
    config, folder, summary = images_run
    raw = np.load(config.dataset.Omniglot.npz)["x_test"]
    kept, items = np.load(folder / "thumbnails.npz"), np.load(folder / "test_items.npz")
    assert np.array_equal(kept["images"][:, 0], raw[kept["index"]])
    assert summary["uncertainty"]["pictures"] == {"images": len(kept["index"])}
    order = np.argsort(items["norm"], kind="stable")
    assert np.array_equal(kept["lowest"], order[:20])
    assert np.array_equal(kept["highest"], order[-20:])
    shown = {*kept["lowest"], *kept["highest"], *kept["by_class"].ravel(), *kept["queries"]} - {-1}
    assert shown | set(items["neighbours"][kept["queries"]].ravel()) == set(kept["index"])
    assert all(len(set(items["labels"][row[row >= 0]])) == 1 for row in kept["by_class"])
    for row in kept["by_class"]:
        assert (np.diff(items["norm"][row[row >= 0]]) >= 0).all()
    assert kept["degraded"].shape == (4, 4, 1, 28, 28)
    assert np.array_equal(kept["degraded"][2, 0, 0], raw[kept["degraded_item"]]), "strength 0 is the image itself"


def test_queries_are_right_and_wrong_at_both_ends():
    norm = torch.arange(12.0)
    right, counted = torch.arange(12) % 2 == 0, torch.arange(12) < 10
    labels = torch.zeros(12, dtype=torch.long)
    found = Retrieved(labels, labels[:, None], norm[:, None], right, counted, norm, norm)
    assert set(pictures.choose(found)["queries"]) == {8, 6, 0, 2, 9, 7, 1, 3}


def test_data_without_pictures_say_so(features_run, tmp_path, monkeypatch):
    _, folder, summary = features_run
    assert not (folder / "thumbnails.npz").exists()
    assert summary["uncertainty"]["pictures"] == {"left_out": "the data are features"}


# the run folder -------------------------------------------------------------------------------------------------


def test_json_stays_json_where_a_metric_is_undefined(tmp_path):
    """Everything is retrieved rightly: no AUROC."""
    labels = np.repeat(np.arange(8), 5)
    npz = fakes.features(tmp_path / "f.npz", x_test=100 * np.eye(8)[labels][:, :4] + labels[:, None] * 10.0)
    config = experiment(tmp_path, f"{{FeatureArrays: {{npz: {npz}, standardize: false}}}}", "model=features")
    summary = run.start(config, tmp_path / "run")
    text = (tmp_path / "run" / "summary.json").read_text()
    assert json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON")) == summary
    assert summary["test"]["recall_at_1"] == 1
    assert summary["test"]["certainty_auroc"] is None
    assert summary["uncertainty"]["certainty"]["certainty_auroc"] is None
    assert "left_out" in summary["uncertainty"]["degradation"]


def test_finite():
    given = {"a": [1.0, math.nan, (math.inf, "b")], "c": {"d": -math.inf, "e": 3, "f": True, "g": None}}
    assert checkpoint.finite(given) == {"a": [1.0, None, [None, "b"]], "c": {"d": None, "e": 3, "f": True, "g": None}}


def test_an_undefined_score_still_has_an_epoch_to_test(features_run, tmp_path, monkeypatch):
    config, real, scores = features_run[0].copy(), run._evaluate, iter([math.nan, 0.1, math.nan])
    config.general.epochs = 3

    def evaluate(parts, split, epoch):
        metrics = real(parts, split, epoch)
        return metrics | {"validation_mean_average_precision_at_r": next(scores)} if split == "validation" else metrics

    monkeypatch.setattr(run, "_evaluate", evaluate)
    summary = run.start(config, tmp_path / "run")
    assert (summary["best_epoch"], summary["validation_score"]) == (2, 0.1)
    assert (
        json.loads((tmp_path / "run" / "history.json").read_text())[0]["validation_mean_average_precision_at_r"] is None
    )


def test_less_is_better_of_some(features_run, tmp_path):
    names = ("aurc", "excess_aurc_ppk", "aurc_similarity", "feature_diversity", "intra_inter_ratio")
    assert all(lower_is_better(name) for name in names)
    assert not any(map(lower_is_better, ("recall_at_1", "certainty_auroc_ppk", "NMI", "cluster_diversity")))
    config = features_run[0].copy()
    config.evaluation.metrics, config.evaluation.select = ["aurc"], "aurc"
    with pytest.raises(ConfigError, match=r"evaluation\.select: .* of 'aurc' less is better"):
        run.start(config, tmp_path / "run")


def test_overwriting_removes_what_the_old_run_left(features_run, tmp_path, monkeypatch):
    config, folder = features_run[0].copy(), tmp_path / "run"
    folder.mkdir()
    (folder / "thumbnails.npz").write_bytes(b"old")
    run.start(config, folder, overwrite=True)
    assert not (folder / "thumbnails.npz").exists()


# the report -----------------------------------------------------------------------------------------------------


def test_real_runs_have_a_report(features_run, images_run, capsys):
    """What runs write is what the report reads."""
    _, features, _ = features_run
    _, images, summary = images_run
    out = images.parent / "report.html"
    assert cli.main(["report", str(features), str(images), "--out", str(out)]) == 0
    assert capsys.readouterr().out.strip() == str(out)
    page = out.read_text()
    assert f"{100 * summary['test']['recall_at_1']:.2f}" in page
    assert 'id="images"' in page
    assert "as given" in page
    assert "data:image/png;base64," in page


def test_a_saved_configuration_runs_again(features_run):
    """`pml-nivmf run config.yaml`, as the report says."""
    config, folder, _ = features_run
    assert compose(str(folder / "config.yaml")).config == config
