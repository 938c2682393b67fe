"""Diversity, calibration, anisotropy and galleries against SciPy, scikit-learn and cases computed by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.spatial.distance import pdist
from sklearn.calibration import calibration_curve
from sklearn.metrics import log_loss, roc_auc_score

from pml_nivmf.metrics import (
    UndefinedMetricError,
    cluster_diversity,
    concentration_anisotropy,
    draw_gallery,
    expected_calibration_error,
    feature_diversity,
    posterior_metrics,
)


def data(offset=0.0, count=120, classes=7, dim=5):
    generator = np.random.default_rng(0)
    labels = generator.integers(0, classes, count) * 3 - 4
    noise = (1 + np.abs(labels)[:, None] / 5) * generator.normal(size=(count, dim))
    return generator.normal(size=(classes * 3, dim))[labels] + noise + offset, labels


def within(x, y):
    return np.concatenate([pdist(x[y == label]) for label in np.unique(y)])


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_cluster_diversity_is_scipys(offset):
    x, y = data(offset)
    assert cluster_diversity(x, y) == pytest.approx(within(x, y).var(), rel=1e-9)
    variances = [pdist(x[y == label]).var() for label in np.unique(y) if (y == label).sum() > 1]
    assert cluster_diversity(x, y, per_class=True) == pytest.approx(np.mean(variances), rel=1e-9)
    with pytest.raises(UndefinedMetricError, match="none of the 120 classes has two items"):
        cluster_diversity(x, range(len(x)))


@pytest.mark.parametrize("shape", [(50, 8), (8, 50), (5, 1)])
def test_feature_diversity_by_its_formula(shape):
    x = np.random.default_rng(0).normal(size=shape) * np.geomspace(1, 30, shape[1])
    spectrum = np.linalg.svd(x, compute_uv=False)
    shares, count = spectrum / spectrum.sum(), len(spectrum)
    assert feature_diversity(x) == pytest.approx(math.log(count) + np.log(shares).mean(), rel=1e-9, abs=1e-12)
    assert feature_diversity(torch.ones(10, 4)) == -math.inf
    with pytest.raises(UndefinedMetricError, match="all embeddings are zero"):
        feature_diversity(torch.zeros(3, 3))


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.integers(1, 20), st.integers(1, 6))
def test_calibration_error_from_scikit_learns_curve(seed, bins, classes):
    generator = np.random.default_rng(seed)
    probabilities = generator.dirichlet(np.full(classes, 0.3), size=60)
    labels = generator.integers(0, classes, 60)
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    confidence = confidence.clip(0, 1)  # a sum may be one rounding error above one
    accuracies, confidences = calibration_curve(right, confidence, n_bins=bins)
    place = np.searchsorted(np.linspace(0, 1, bins + 1)[1:-1], confidence)
    sizes = np.unique(place, return_counts=True)[1]
    expected = (sizes * np.abs(accuracies - confidences)).sum() / 60
    assert expected_calibration_error(probabilities, labels, bins) == pytest.approx(expected, abs=1e-12)


def test_anisotropy_is_scipys_variation():
    concentration = np.random.default_rng(0).lognormal(size=(6, 9))
    np.testing.assert_allclose(concentration_anisotropy(concentration), stats.variation(concentration, axis=1))
    assert concentration_anisotropy([[1.0, 1e-12, 1e-12, 1e-12, 1e-12]]).item() == pytest.approx(2.0)
    with pytest.raises(ValueError, match=r"concentration must be positive, got -1.0: pass κ, not log κ"):
        concentration_anisotropy([[1.0, 2.0], [-1.0, 2.0]])


@pytest.mark.parametrize(
    ("metric", "values", "labels", "message"),
    [
        (cluster_diversity, [[1.0], [math.nan], [math.inf]], [0, 0, 1], "must not contain NaN, .*, found in row 1"),
        (expected_calibration_error, [[0.5, 0.5], [2.0, 1.0]], [0, 1], "sum to one: apply a softmax to logits"),
        (expected_calibration_error, [[1.5, -0.5]], [0], "must be non-negative and sum to one"),
    ],
)
def test_invalid_input(metric, values, labels, message):
    with pytest.raises(ValueError, match=message):
        metric(values, labels)


def test_galleries_have_k_images_of_each_class_and_the_same_queries():
    labels = torch.tensor([3] * 10 + [7] * 4 + [9])
    queries = {shots: draw_gallery(labels, shots, seed=1)[1].tolist() for shots in (1, 5, None)}
    assert len({tuple(rows) for rows in queries.values()}) == 1
    assert labels[queries[1]].tolist() == [3, 3, 7]
    for shots, counts in {1: [1, 1, 1], 5: [5, 3, 1], None: [8, 3, 1]}.items():
        gallery = draw_gallery(labels, shots, seed=1)[0]
        assert torch.unique(labels[gallery], return_counts=True)[1].tolist() == counts
        assert not set(gallery.tolist()) & set(queries[1])
    assert draw_gallery(labels, 5, seed=2)[1].tolist() != queries[5]


def test_metrics_equal_those_of_scikit_learn():
    generator = np.random.default_rng(0)
    probabilities = generator.dirichlet(np.ones(5), size=60)
    labels = generator.integers(0, 5, 60)
    metrics = posterior_metrics(probabilities, labels)
    right = probabilities.argmax(1) == labels
    assert metrics["accuracy"] == pytest.approx(right.mean())
    assert metrics["nll"] == pytest.approx(log_loss(labels, probabilities))
    assert metrics["auroc"] == pytest.approx(roc_auc_score(right, probabilities.max(1)))
    most_certain = np.argsort(-probabilities.max(1))[:48]
    assert metrics["accuracy_at_coverage_80"] == pytest.approx(right[most_certain].mean())


def test_metrics_by_hand():
    metrics = posterior_metrics([[0.8, 0.2], [0.4, 0.6]], [0, 1])
    assert metrics["nll"] == pytest.approx(-math.log(0.8 * 0.6) / 2)
    assert metrics["ece"] == pytest.approx(0.3)
    assert math.isnan(metrics["auroc"])  # no answer is wrong
    assert posterior_metrics([[1.0, 0.0], [1.0, 0.0]], [0, 1])["nll"] == pytest.approx(-math.log(1e-12) / 2)
