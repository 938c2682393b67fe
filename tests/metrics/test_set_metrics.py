"""Certainty and diversity metrics of the calculator, against naive loops and the plain functions."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch.nn import functional as F

from pml_nivmf.metrics import (
    CERTAINTY_METRICS,
    DIVERSITY_METRICS,
    ProbabilisticAccuracyCalculator,
    cluster_diversity,
    feature_diversity,
    lower_is_better,
    recall_at_coverage,
    risk_coverage,
)

from .. import references
from . import naive
from .naive import data

ALL = (*CERTAINTY_METRICS, *DIVERSITY_METRICS)


def calculator(include=ALL, **kwargs):
    return ProbabilisticAccuracyCalculator(include=include, device="cpu", **kwargs)


def naive_scores(x, y, reference, reference_labels, own, retrieval, scale=1.0):
    """(right, scores) of the queries whose class has another item, by loops and mpmath."""
    x, reference = x.double().numpy(), reference.double().numpy()
    right, scores = [], {"": [], "_similarity": [], "_ppk": []}
    for i, row in enumerate(naive.ranking(x, reference, own, retrieval)):
        if sum(int(label == y[i]) for label in reference_labels) - int(own) < 1:
            continue
        z, n = x[i], reference[row[0]]
        right.append(bool(reference_labels[row[0]] == y[i]))
        scores[""].append(np.linalg.norm(z))
        cosine = z @ n / np.linalg.norm(z) / np.linalg.norm(n)
        scores["_similarity"].append(cosine if retrieval == "cosine" else -np.linalg.norm(z - n))
        scores["_ppk"].append(-references.ppk(scale * z, scale * n, 1.0))
    return np.array(right), scores


@pytest.mark.parametrize(("retrieval", "own"), [("cosine", True), ("l2", True), ("cosine", False)])
def test_naive_loops(retrieval, own):
    x, y = data(50)
    other, other_labels = x, y
    if not own:
        x, y = data(100, lone=0)
        x, y, other, other_labels = x[:50], y[:50].clone(), x[50:], y[50:]
        y[:2] = 99  # a class without references
    arguments = (x, y) if own else (x, y, other, other_labels)
    ours = calculator(retrieval=retrieval).get_accuracy(*arguments)
    assert set(ours) == set(ALL)
    right, scores = naive_scores(x, y, other, other_labels, own, retrieval)
    assert len(right) == 48
    assert 5 < right.sum() < 43
    for suffix, values in scores.items():
        assert ours[f"certainty_auroc{suffix}"] == pytest.approx(roc_auc_score(right, values), abs=1e-9)
        curve = risk_coverage(values, right)
        assert ours[f"aurc{suffix}"] == pytest.approx(curve.area)
        assert ours[f"excess_aurc{suffix}"] == pytest.approx(curve.excess_area)
        for percent in (50, 80, 90, 95):
            expected = recall_at_coverage(values, right, [percent / 100])[percent / 100]
            assert ours[f"recall_at_coverage_{percent}{suffix}"] == pytest.approx(expected)


@pytest.mark.parametrize("retrieval", ["cosine", "l2"])
def test_diversity_is_that_of_the_retrieval_space(retrieval):
    x, y = data()
    space = F.normalize(x) if retrieval == "cosine" else x
    ours = calculator(DIVERSITY_METRICS, retrieval=retrieval).get_accuracy(x, y)
    assert ours["cluster_diversity"] == pytest.approx(cluster_diversity(space, y), rel=1e-5)
    per_class = cluster_diversity(space, y, per_class=True)
    assert ours["cluster_diversity_per_class"] == pytest.approx(per_class, rel=1e-5)
    assert ours["feature_diversity"] == pytest.approx(feature_diversity(space), rel=1e-5)


def test_embedding_scale_affects_ppk_only():
    x, y = data(50)
    plain, scaled = calculator().get_accuracy(x, y), calculator(embedding_scale=0.05).get_accuracy(x, y)
    changed = {name for name in ALL if plain[name] != scaled[name]}
    assert changed
    assert all(name.endswith("_ppk") for name in changed)
    right, scores = naive_scores(x, y, x, y, True, "cosine", scale=0.05)
    assert scaled["certainty_auroc_ppk"] == pytest.approx(roc_auc_score(right, scores["_ppk"]))


def test_undefined_is_nan():
    x = F.normalize(torch.randn(6, 3, generator=torch.Generator().manual_seed(0)))
    lone = calculator().get_accuracy(x, torch.arange(6))
    assert {name for name in ALL if math.isfinite(lone[name])} == {"feature_diversity"}
    one_class = calculator().get_accuracy(x, torch.zeros(6))
    assert math.isnan(one_class["certainty_auroc"])
    assert (one_class["aurc"], one_class["recall_at_coverage_50_ppk"]) == (0.0, 1.0)
    assert math.isnan(calculator().get_accuracy(x[:1], torch.zeros(1))["aurc"])


def test_lower_is_better():
    assert all(map(lower_is_better, ("excess_aurc_ppk", "aurc", "gallery_5_shot_nll", "a_1_shot_ece")))
    assert not any(map(lower_is_better, ("recall_at_1", "certainty_auroc_ppk", "gallery_5_shot_accuracy")))
