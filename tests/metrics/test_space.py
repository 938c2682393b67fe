"""Diversity, calibration and anisotropy against SciPy, scikit-learn and hand-computed cases."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.spatial.distance import pdist
from sklearn.calibration import calibration_curve

from pml_nivmf.metrics import (
    UndefinedMetricError,
    cluster_diversity,
    concentration_anisotropy,
    expected_calibration_error,
    feature_diversity,
    intra_inter_ratio,
    pair_distances,
)


def data(count=120, classes=7, dim=5, seed=0, offset=0.0):
    chance = np.random.default_rng(seed)
    labels = chance.integers(0, classes, count) * 3 - 4
    spread = 1 + np.abs(labels)[:, None] / 5
    return chance.normal(size=(classes * 3, dim))[labels] + spread * chance.normal(size=(count, dim)) + offset, labels


def within(x, y):
    return [pdist(x[y == label]) for label in np.unique(y)]


# diversity ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [2**22, 50, 1])
def test_cluster_diversity_is_scipys(block, monkeypatch):
    monkeypatch.setattr(pair_distances, "_BLOCK", block)
    x, y = data()
    distances = within(x, y)
    assert cluster_diversity(x, y) == pytest.approx(np.concatenate(distances).var(), rel=1e-10)
    means = [d.mean() for d in distances]
    assert cluster_diversity(x, y, over="classes") == pytest.approx(np.var(means), rel=1e-10)


def test_cluster_diversity_far_from_the_origin():
    x, y = data(offset=1e6)
    assert cluster_diversity(x, y) == pytest.approx(np.concatenate(within(x, y)).var(), rel=1e-6)


def test_cluster_diversity_by_hand():
    x = [[0.0], [1.0], [5.0], [8.0], [100.0]]  # distances 1 and 3; the last is alone
    assert cluster_diversity(x, [0, 0, 1, 1, 2]) == pytest.approx(1.0)
    assert cluster_diversity(x, [0, 0, 1, 2, 3]) == 0.0
    with pytest.raises(UndefinedMetricError, match="none of the 5 classes has two items"):
        cluster_diversity(x, [0, 1, 2, 3, 4])


def test_clusters_alike_are_less_diverse():
    chance = np.random.default_rng(0)
    noise, labels = chance.normal(size=(200, 8)), np.repeat(np.arange(10), 20)
    alike = cluster_diversity(noise + 10 * labels[:, None], labels)
    assert cluster_diversity(noise * (1 + labels[:, None] / 5) + 10 * labels[:, None], labels) > 2 * alike


def test_intra_inter_ratio_is_scipys():
    x, y = data()
    means = np.stack([x[y == label].mean(axis=0) for label in np.unique(y)])
    assert intra_inter_ratio(x, y) == pytest.approx(
        np.concatenate(within(x, y)).mean() / pdist(means).mean(), rel=1e-10
    )
    assert intra_inter_ratio(7 * x + 3, y) == pytest.approx(intra_inter_ratio(x, y), rel=1e-10)


def test_intra_inter_ratio_undefined():
    with pytest.raises(UndefinedMetricError, match="there is one class only"):
        intra_inter_ratio(torch.randn(4, 2), [5] * 4)
    with pytest.raises(UndefinedMetricError, match="all class means coincide"):
        intra_inter_ratio([[0.1], [0.3], [0.15], [0.25]], [0, 0, 1, 1])
    assert intra_inter_ratio([[0.0], [0.0], [1.0], [1.0]], [0, 0, 1, 1]) == 0.0


@pytest.mark.parametrize("shape", [(50, 8), (8, 50), (9000, 6), (5, 1)])
def test_feature_diversity_is_scipys(shape):
    x = np.random.default_rng(0).normal(size=shape) * np.geomspace(1, 30, shape[1])
    spectrum = np.linalg.svd(x, compute_uv=False)
    spectrum = spectrum / spectrum.sum()
    uniform = np.full(len(spectrum), 1 / len(spectrum))
    assert feature_diversity(x) == pytest.approx(stats.entropy(uniform, spectrum), rel=1e-9, abs=1e-12)
    assert feature_diversity(x, reverse=True) == pytest.approx(stats.entropy(spectrum, uniform), rel=1e-9, abs=1e-12)


def test_feature_diversity_by_hand():
    assert feature_diversity(torch.eye(6)) == pytest.approx(0.0, abs=1e-12)
    assert feature_diversity(np.diag([3.0, 1.0])) == pytest.approx(-math.log(2) - (math.log(0.75) + math.log(0.25)) / 2)
    collapsed = torch.ones(10, 4)
    assert feature_diversity(collapsed) == math.inf
    assert feature_diversity(collapsed, reverse=True) == pytest.approx(math.log(4))
    with pytest.raises(UndefinedMetricError, match="all embeddings are zero"):
        feature_diversity(torch.zeros(3, 3))


@pytest.mark.parametrize("metric", [cluster_diversity, intra_inter_ratio, lambda x, y: feature_diversity(x)])
def test_embeddings_that_are_not_finite(metric):
    with pytest.raises(ValueError, match="embeddings holds NaN or infinity, first in row 1"):
        metric([[1.0, 2.0], [math.nan, 1.0], [math.inf, 2.0]], [0, 0, 1])


def test_labels_that_do_not_fit():
    with pytest.raises(ValueError, match=r"labels must have one entry for each of 3 items, got shape \(2,\)"):
        cluster_diversity(torch.eye(3), [0, 1])
    with pytest.raises(ValueError, match="labels holds NaN, first in row 1: leave such items out"):
        cluster_diversity(torch.eye(3), [0, math.nan, math.nan])
    with pytest.raises(ValueError, match=r"labels must hold numbers, got .* of dtype <U1"):
        intra_inter_ratio(torch.eye(3), ["a", "a", "b"])
    with pytest.raises(ValueError, match="over must be one of pairs, classes, got 'items'"):
        cluster_diversity(torch.eye(3), [0, 0, 1], over="items")


# calibration ----------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.integers(1, 20), st.integers(1, 6))
def test_calibration_error_from_scikit_learns_curve(seed, bins, classes):
    chance = np.random.default_rng(seed)
    probabilities = chance.dirichlet(np.full(classes, 0.3), size=60)
    labels = chance.integers(0, classes, 60)
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    confidence = confidence.clip(0, 1)  # a sum may be one rounding error above one
    accuracies, confidences = calibration_curve(right, confidence, n_bins=bins)
    place = np.searchsorted(np.linspace(0, 1, bins + 1)[1:-1], confidence)
    sizes = np.unique(place, return_counts=True)[1]
    expected = (sizes * np.abs(accuracies - confidences)).sum() / 60
    assert expected_calibration_error(probabilities, labels, bins) == pytest.approx(expected, abs=1e-12)


def test_calibration_error_by_hand():
    probabilities = [[0.9, 0.1], [0.9, 0.1], [0.4, 0.6], [0.3, 0.7]]
    labels = [0, 1, 1, 1]
    # bins of ten: (0.8, 0.9] has accuracy 1/2, (0.5, 0.6] and (0.6, 0.7] accuracy 1
    assert expected_calibration_error(probabilities, labels, 10) == pytest.approx((2 * 0.4 + 0.4 + 0.3) / 4)
    assert expected_calibration_error(probabilities, labels, 1) == pytest.approx((0.9 + 0.9 + 0.6 + 0.7) / 4 - 0.75)
    assert expected_calibration_error(np.eye(3), [0, 1, 2]) == 0.0
    assert expected_calibration_error(np.eye(3), [1, 2, 0]) == 1.0
    assert expected_calibration_error([[1.0], [1.0]], [0, 0]) == 0.0
    assert expected_calibration_error(np.eye(2), [False, True]) == 0.0


def test_calibrated_probabilities_have_no_error():
    generator = torch.Generator().manual_seed(0)
    probabilities = (2 * torch.randn(20_000, 5, generator=generator)).softmax(1)
    labels = torch.multinomial(probabilities, 1, generator=generator)[:, 0]
    assert expected_calibration_error(probabilities, labels) < 0.015
    sharpened = probabilities**3 / (probabilities**3).sum(1, keepdim=True)
    assert expected_calibration_error(sharpened, labels) > 0.1


@pytest.mark.parametrize(
    ("probabilities", "labels", "message"),
    [
        ([[0.5, 0.5], [2.0, 1.0]], [0, 1], "row 1 sums to 3, its least entry is 1: pass logits through a softmax"),
        ([[1.5, -0.5]], [0], "row 0 sums to 1, its least entry is -0.5"),
        ([[0.5, 0.5]], [2], r"labels must be integers in 0 … 1, the columns of probabilities, got 2"),
        ([[0.5, 0.5]], [0.5], r"labels must be integers in 0 … 1, the columns of probabilities, got 0.5"),
        ([[0.5, 0.5]], [math.inf], r"labels must be integers in 0 … 1, the columns of probabilities, got inf"),
        ([[0.5, 0.5]], [math.nan], "labels holds NaN, first in row 0"),
        ([[0.5, 0.5]], [0, 1], "one entry for each of 1 items"),
        ([[math.nan, 0.5]], [0], "holds NaN"),
        ([0.5, 0.5], [0, 1], r"must have shape \(items, size\)"),
    ],
)
def test_probabilities_that_do_not_fit(probabilities, labels, message):
    with pytest.raises(ValueError, match=message):
        expected_calibration_error(probabilities, labels)


# anisotropy -----------------------------------------------------------------------------------------------------


def test_anisotropy_is_scipys_variation():
    concentration = np.random.default_rng(0).lognormal(size=(6, 9))
    expected = stats.variation(concentration, axis=1)
    np.testing.assert_allclose(concentration_anisotropy(concentration), expected, rtol=1e-12)
    np.testing.assert_allclose(concentration_anisotropy(50 * concentration), expected, rtol=1e-12)
    assert concentration_anisotropy(torch.full((2, 4), 3.0)).tolist() == [0.0, 0.0]
    assert concentration_anisotropy([[1.0, 1e-12, 1e-12, 1e-12, 1e-12]]).item() == pytest.approx(2.0)
    with pytest.raises(ValueError, match=r"must be positive, got -1.0 in row 1: log-concentrations need .exp\(\)"):
        concentration_anisotropy([[1.0, 2.0], [-1.0, 2.0]])
