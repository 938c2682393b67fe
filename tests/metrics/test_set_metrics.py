"""Certainty and diversity metrics through the calculator, against naive loops and the plain functions."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import roc_auc_score
from torch.nn import functional as F

from pml_nivmf.metrics import (
    CERTAINTY_METRICS,
    DIVERSITY_METRICS,
    ProbabilisticAccuracyCalculator,
    cluster_diversity,
    feature_diversity,
    intra_inter_ratio,
    recall_at_coverage,
    risk_coverage,
)

from .. import references
from . import naive
from .test_calculator import NO_CLUSTERS, data

ALL = (*CERTAINTY_METRICS, *DIVERSITY_METRICS)


def calculator(include=ALL, **kwargs):
    return ProbabilisticAccuracyCalculator(include=include, device="cpu", **kwargs)


def naive_scores(x, y, reference, reference_labels, own, retrieval, scale=1.0):
    """(right, scores) of the queries that have something to find, by loops and mpmath."""
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


@pytest.mark.parametrize("retrieval", ["cosine", "l2"])
@pytest.mark.parametrize("own", [True, False])
def test_naive_loops(retrieval, own):
    x, y = data(50)
    other, other_labels = x, y
    if not own:
        x, y = data(100, lone=0)
        x, y, other, other_labels = x[:50], y[:50].clone(), x[50:], y[50:]
        y[:2] = 99  # nothing to find
    arguments = (x, y) if own else (x, y, other, other_labels)
    ours = calculator(retrieval=retrieval, batch_size=7).get_accuracy(*arguments)
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
def test_diversity_is_that_of_the_space_of_retrieval(retrieval):
    x, y = data()
    space = F.normalize(x) if retrieval == "cosine" else x
    ours = calculator(DIVERSITY_METRICS, retrieval=retrieval).get_accuracy(x, y)
    assert ours["cluster_diversity"] == pytest.approx(cluster_diversity(space, y), rel=1e-5)
    assert ours["feature_diversity"] == pytest.approx(feature_diversity(space), rel=1e-5)
    assert ours["intra_inter_ratio"] == pytest.approx(intra_inter_ratio(space, y), rel=1e-5)


def test_the_scale_matters_to_the_ppk_only():
    x, y = data(50)
    plain, scaled = calculator().get_accuracy(x, y), calculator(embedding_scale=0.05).get_accuracy(x, y)
    changed = {name for name in ALL if plain[name] != scaled[name]}
    assert changed
    assert all(name.endswith("_ppk") for name in changed)
    right, scores = naive_scores(x, y, x, y, True, "cosine", scale=0.05)
    assert scaled["certainty_auroc_ppk"] == pytest.approx(roc_auc_score(right, scores["_ppk"]))


def test_only_where_they_are_named():
    assert set(ProbabilisticAccuracyCalculator(device="cpu").get_curr_metrics()).isdisjoint(ALL)
    chosen = calculator(("certainty_auroc", "recall_at_coverage_33_ppk", "recall_at_1"))
    x, y = data()
    assert set(chosen.get_accuracy(x, y)) == {"certainty_auroc", "recall_at_coverage_33_ppk", "recall_at_1"}
    assert set(chosen.get_accuracy(x, y, include=("certainty_auroc",))) == {"certainty_auroc"}
    assert "aurc" not in calculator(exclude=("aurc",)).get_curr_metrics()


@pytest.mark.parametrize("name", ["recall_at_coverage_0", "recall_at_coverage_101", "certainty_auroc_cosine"])
def test_names_that_do_not_exist(name):
    with pytest.raises(ValueError, match="certainty_auroc_ppk"):
        calculator((name,))


def test_other_metrics_are_not_changed():
    x, y = data()
    usual = ProbabilisticAccuracyCalculator(device="cpu", exclude=NO_CLUSTERS)
    expected = usual.get_accuracy(x, y)
    both = calculator((*expected, *ALL)).get_accuracy(x, y)
    assert {name: both[name] for name in expected} == expected


def test_whole_set_also_with_class_averages():
    x, y = data()
    plain = calculator().get_accuracy(x, y)
    assert calculator(avg_of_avgs=True).get_accuracy(x, y) == plain
    assert calculator(return_per_class=True).get_accuracy(x, y) == plain


def test_undefined_is_nan_and_stops_nothing():
    x = F.normalize(torch.randn(6, 3, generator=torch.Generator().manual_seed(0)))
    lone = calculator().get_accuracy(x, torch.arange(6))
    assert all(math.isnan(lone[name]) for name in ALL if name != "feature_diversity")
    assert math.isfinite(lone["feature_diversity"])
    one_class = calculator().get_accuracy(x, torch.zeros(6))
    assert math.isnan(one_class["certainty_auroc"])
    assert math.isnan(one_class["intra_inter_ratio"])
    assert one_class["aurc"] == 0.0
    assert one_class["recall_at_coverage_50_ppk"] == 1.0
    assert one_class["cluster_diversity"] > 0
    all_wrong = calculator().get_accuracy(x, torch.zeros(6), -x, torch.tensor([1, 1, 1, 1, 1, 0]))
    assert set(all_wrong) == set(ALL)
    single = calculator().get_accuracy(x[:1], torch.zeros(1))
    assert math.isnan(single["aurc"])
    with pytest.raises(ValueError, match="query_labels holds NaN, first in row 2"):
        calculator().get_accuracy(x, torch.tensor([0.0, 0.0, math.nan, 1.0, 1.0, math.nan]))


@pytest.mark.parametrize(("labels", "recall"), [([0, 0, 1, 1], 1.0), ([0, 1, 0, 1], 0.0)])
def test_all_right_and_all_wrong(labels, recall):
    """Two pairs of close neighbours."""
    x = torch.tensor([[1.0, 0.0], [2.0, 0.1], [0.0, 3.0], [0.1, 4.0]])
    ours = calculator().get_accuracy(x, torch.tensor(labels))
    for suffix in ("", "_similarity", "_ppk"):
        assert math.isnan(ours[f"certainty_auroc{suffix}"])
        assert ours[f"aurc{suffix}"] == 1 - recall
        assert ours[f"excess_aurc{suffix}"] == 0.0
        assert ours[f"recall_at_coverage_50{suffix}"] == recall


def test_norms_of_a_unit_sphere_say_nothing():
    """Every certainty is 1: half is the chance of every pair, and risk does not change with coverage."""
    x, y = data(60)
    x = torch.where(torch.rand(60, 6, generator=torch.Generator().manual_seed(1)) < 0.5, -1.0, 1.0)
    ours = calculator(("certainty_auroc", "aurc", "recall_at_coverage_50", "recall_at_1")).get_accuracy(x, y % 3)
    assert ours["certainty_auroc"] == 0.5
    assert ours["recall_at_coverage_50"] == pytest.approx(ours["recall_at_1"])
    assert ours["aurc"] == pytest.approx(1 - ours["recall_at_1"])


def test_with_a_comparison_of_ones_own():
    x, y = data(40)

    def same(a, b):
        return a == b

    chosen = calculator(("certainty_auroc",), label_comparison_fn=same)
    assert chosen.get_accuracy(x, y) == calculator(("certainty_auroc",)).get_accuracy(x, y)
    with pytest.raises(NotImplementedError, match="diversity metrics group items by equal labels"):
        calculator(("cluster_diversity",), label_comparison_fn=same)


def test_copies_and_pickles():
    x, y = data()
    original = calculator()
    for twin in (copy.deepcopy(original), pickle.loads(pickle.dumps(original))):
        assert twin.get_accuracy(x, y) == original.get_accuracy(x, y)
        twin.embedding_scale = 1e-3
        assert twin.get_accuracy(x, y) != original.get_accuracy(x, y)


@pytest.mark.parametrize("scale", [0, -1.0, math.inf])
def test_scales_that_do_not_fit(scale):
    with pytest.raises(ValueError, match="embedding_scale must be a positive number"):
        calculator(embedding_scale=scale)


def test_certainty_that_predicts_errors():
    """Norms made from the errors themselves: perfect, and upside down."""
    x, y = data(60, lone=0)
    x = F.normalize(x)
    right = torch.tensor([bool(y[row[0]] == y[i]) for i, row in enumerate(naive.ranking(x, x, True, "cosine"))])
    certain, deceived = x * (1 + right)[:, None], x * (2 - right.float())[:, None]
    names = ("certainty_auroc", "excess_aurc")
    best, worst = calculator(names).get_accuracy(certain, y), calculator(names).get_accuracy(deceived, y)
    assert best == pytest.approx({"certainty_auroc": 1.0, "excess_aurc": 0.0}, abs=1e-12)
    assert worst["certainty_auroc"] == 0.0
    assert worst["excess_aurc"] > 0.1
    assert stats.pearsonr(right, certain.norm(dim=1)).statistic == pytest.approx(1.0)
