"""Certainty against right and wrong: AUROC, risk and coverage, thresholds, rank correlation, degradation."""

import itertools
import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import precision_recall_curve, roc_auc_score

from pml_nivmf.metrics import (
    UndefinedMetricError,
    certainty,
    certainty_auroc,
    recall_at_coverage,
    risk_coverage,
    share_less_certain,
    spearman_correlation,
    threshold_for_precision,
)

# Few distinct values, so that ties are the rule.
ITEMS = st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=40)
LEVELS = st.lists(st.integers(-3, 3), min_size=2, max_size=30)


def split(items):
    certainty, correct = zip(*items, strict=True)
    return list(certainty), list(correct)


def random_items(count, levels, seed=0):
    """`levels`: how many distinct certainties there may be."""
    chance = np.random.default_rng(seed)
    scores = chance.integers(0, levels, count) / levels
    return scores, chance.random(count) < 0.3 + 0.4 * scores


# AUROC ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", [2, 7, 10**9])
def test_auroc_is_scikit_learns(levels):
    scores, correct = random_items(500, levels)
    assert certainty_auroc(scores, correct) == pytest.approx(roc_auc_score(correct, scores), abs=1e-13)


@given(ITEMS)
def test_auroc_by_counting_pairs(items):
    scores, correct = split(items)
    right = [c for c, r in items if r]
    wrong = [c for c, r in items if not r]
    if not right or not wrong:
        with pytest.raises(UndefinedMetricError, match=f"got {len(right)} right and {len(wrong)} wrong"):
            certainty_auroc(scores, correct)
        return
    pairs = [(a > b) + 0.5 * (a == b) for a in right for b in wrong]
    assert certainty_auroc(scores, correct) == pytest.approx(np.mean(pairs), abs=1e-12)
    assert certainty_auroc([-c for c in scores], correct) == pytest.approx(1 - np.mean(pairs), abs=1e-12)


def test_auroc_by_hand():
    assert certainty_auroc([3.0, 2.0, 1.0], [True, True, False]) == 1.0
    assert certainty_auroc([1.0, 2.0, 3.0], [True, True, False]) == 0.0
    assert certainty_auroc([1.0, 1.0, 1.0], [True, False, False]) == 0.5
    assert certainty_auroc([4, 3, 2, 1], [1, 0, 1, 0]) == 0.75
    assert certainty_auroc([-math.inf, 0.0, math.inf], [False, True, True]) == 1.0
    assert certainty_auroc([1.0, 1.0 + 1e-12], [False, True]) == 1.0  # no tie in float64


def test_auroc_sees_the_order_only():
    scores, correct = random_items(200, 50)
    assert certainty_auroc(np.exp(30 * scores), correct) == certainty_auroc(scores, correct)


def test_kinds_of_input():
    scores, correct = random_items(100, 20)
    expected = certainty_auroc(scores, correct)
    for c, r in (
        (torch.tensor(scores), torch.tensor(correct)),
        (torch.tensor(scores, requires_grad=True), torch.tensor(correct).int()),
        (scores.tolist(), correct.astype(float)),
        (scores[::-1], correct[::-1]),  # torch takes no negative strides
        (frozen(scores), frozen(correct)),  # and warns of arrays that cannot be written to
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert certainty_auroc(c, r) == expected


def frozen(array):
    array = array.copy()
    array.setflags(write=False)
    return array


# risk and coverage ----------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=6))
def test_curve_is_the_mean_over_all_orders_of_ties(items):
    curves = []
    for order in itertools.permutations(items):
        ranked = sorted(order, key=lambda item: -item[0])  # stable: ties stay as the permutation has them
        wrong = np.cumsum([not correct for _, correct in ranked])
        curves.append(wrong / np.arange(1, len(items) + 1))
    curve = risk_coverage(*split(items))
    np.testing.assert_allclose(curve.risk, np.mean(curves, axis=0), atol=1e-12)
    np.testing.assert_allclose(curve.coverage, np.arange(1, len(items) + 1) / len(items))
    assert curve.area == pytest.approx(np.mean(curves), abs=1e-12)


@given(ITEMS, st.randoms())
def test_order_of_the_items_does_not_matter(items, chance):
    shuffled = items.copy()
    chance.shuffle(shuffled)
    first, second = risk_coverage(*split(items)), risk_coverage(*split(shuffled))
    np.testing.assert_allclose(first.risk, second.risk, atol=1e-12)


@given(ITEMS)
def test_bounds_of_the_area(items):
    scores, correct = split(items)
    curve = risk_coverage(scores, correct)
    best, worst = risk_coverage(correct, correct).area, risk_coverage([-int(c) for c in correct], correct).area
    assert best - 1e-12 <= curve.area <= worst + 1e-12
    assert curve.excess_area == pytest.approx(curve.area - best, abs=1e-12)
    assert float(curve.risk[-1]) == pytest.approx(1 - np.mean(correct))


def test_curve_by_hand():
    curve = risk_coverage([0.9, 0.8, 0.7, 0.6], [True, False, True, False])
    assert curve.risk.tolist() == pytest.approx([0, 1 / 2, 1 / 3, 1 / 2])
    assert curve.area == pytest.approx((0 + 1 / 2 + 1 / 3 + 1 / 2) / 4)
    assert curve.excess_area == pytest.approx(curve.area - (1 / 3 + 2 / 4) / 4)
    assert curve.coverage.tolist() == [0.25, 0.5, 0.75, 1.0]
    coverage, risk, area = curve
    assert (coverage is curve.coverage, risk is curve.risk, area) == (True, True, curve.area)


def test_all_right_and_all_wrong():
    for correct, risk in ((True, 0.0), (False, 1.0)):
        curve = risk_coverage([1, 2, 3], [correct] * 3)
        assert curve.risk.tolist() == [risk] * 3
        assert curve.area == risk
    assert risk_coverage([1, 2], [False] * 2).excess_area == 0.0
    assert recall_at_coverage([1, 2, 3], [True] * 3, [0.5, 1]) == {0.5: 1.0, 1: 1.0}


def test_recall_at_coverage_by_hand():
    scores, correct = [10, 9, 8, 7, 6, 5, 4, 3, 2, 1], [1, 1, 1, 0, 1, 0, 1, 0, 0, 0]
    recalls = recall_at_coverage(scores, correct, [0.01, 0.3, 0.4, 0.5, 0.55, 0.7, 1.0])
    expected = {0.01: 1.0, 0.3: 1.0, 0.4: 3 / 4, 0.5: 4 / 5, 0.55: 4 / 6, 0.7: 5 / 7, 1.0: 0.5}
    assert recalls == pytest.approx(expected)
    # 0.07·100 is 7.000000000000001: seven items, of which the eighth is the first wrong one
    assert recall_at_coverage(range(100, 0, -1), [1] * 7 + [0] * 93, [0.07]) == {0.07: 1.0}
    # all equally certain: the plain recall, whatever the coverage
    assert recall_at_coverage([1] * 4, [1, 0, 0, 0], [0.25, 0.5])[0.25] == pytest.approx(0.25)


def test_coverages_of_any_kind_are_found_by_number():
    scores, correct = [4, 3, 2, 1], [1, 1, 1, 0]
    for coverages in (torch.tensor([0.5, 1.0]), np.array([0.5, 1.0]), (0.5, 1)):
        assert recall_at_coverage(scores, correct, coverages) == {0.5: 1.0, 1.0: 0.75}
    for single in (0.5, "0.5"):
        with pytest.raises(ValueError, match="coverages must be a list of shares of the items, got"):
            recall_at_coverage(scores, correct, single)


@pytest.mark.parametrize("coverage", [0, -0.5, 1.01, float("nan")])
def test_coverages_that_are_none(coverage):
    with pytest.raises(ValueError, match="a coverage must be a share of the items"):
        recall_at_coverage([1, 2], [True, False], [coverage])


# thresholds -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", [0.4, 0.6, 0.7, 0.9])
@pytest.mark.parametrize("levels", [20, 10**9])
def test_threshold_is_the_lowest_that_is_enough(precision, levels):
    scores, correct = random_items(300, levels)
    found, _, thresholds = precision_recall_curve(correct, scores)
    enough = thresholds[found[:-1] >= precision]
    if len(enough) == 0:
        with pytest.raises(UndefinedMetricError, match=f"no threshold reaches a precision of {precision}"):
            threshold_for_precision(scores, correct, precision)
        return
    threshold = threshold_for_precision(scores, correct, precision)
    assert threshold == enough.min()
    assert correct[scores >= threshold].mean() >= precision


def test_threshold_rounding():
    assert threshold_for_precision(range(10), [0] + [1] * 9, 0.9) == 0.0
    with pytest.raises(ValueError, match=r"precision must be a share above 0 and at most 1, got 1\.5"):
        threshold_for_precision([1], [True], 1.5)


# rank correlation and degradation -------------------------------------------------------------------------------


@given(LEVELS, LEVELS)
def test_spearman_is_scipys(first, second):
    length = min(len(first), len(second))
    first, second = first[:length], second[:length]
    if len(set(first)) == 1 or len(set(second)) == 1:
        with pytest.raises(UndefinedMetricError, match="a correlation needs values that differ"):
            spearman_correlation(first, second)
        return
    expected = stats.spearmanr(first, second).statistic
    assert spearman_correlation(first, second) == pytest.approx(expected, abs=1e-12)


def test_spearman_of_a_degradation():
    strength = torch.linspace(0, 1, 50)
    assert spearman_correlation(strength, torch.exp(-5 * strength)) == pytest.approx(-1.0)
    with pytest.raises(ValueError, match="must have the same length, got 50 and 49"):
        spearman_correlation(strength, strength[1:])


def test_share_less_certain():
    assert share_less_certain([3.0, 3.0, 3.0, 3.0], [1.0, 2.0, 3.0, 4.0]) == 0.5
    assert share_less_certain([1.0], [0.0]) == 1.0
    with pytest.raises(ValueError, match="must be of the same images, got 2 and 1"):
        share_less_certain([1.0, 2.0], [1.0])


# what all refuse ------------------------------------------------------------------------------------------------

PAIRWISE = (certainty_auroc, risk_coverage, lambda c, r: recall_at_coverage(c, r, [0.5]))


@pytest.mark.parametrize("metric", PAIRWISE)
@pytest.mark.parametrize(
    ("scores", "correct", "message"),
    [
        ([1.0, math.nan, math.nan], [True, False, True], "certainty holds NaN, first in row 1"),
        ([1.0, 2.0], [1.0, math.nan], "correct holds NaN, first in row 1"),
        ([1.0, 2.0], [True], "correct must have one entry for each of 2 items, got 1"),
        ([1.0, 2.0], [0, 2], "correct must be true or false, 1 or 0, got 2.0"),
        ([], [], r"at least one item, got \(0,\)"),
        ([[1.0, 2.0]], [[True, False]], r"must have shape \(items,\)"),
        (["high", "low"], [True, False], r"certainty must hold numbers, got \['high', 'low'\]"),
        ([1.0, 2.0], [True, None], r"correct must hold numbers, got \[True, None\] of dtype object"),
    ],
)
def test_input_that_does_not_fit(metric, scores, correct, message):
    with pytest.raises(ValueError, match=message):
        metric(scores, correct)


def test_certainty_is_the_norm():
    raw = torch.randn(10, 5, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(certainty(raw), torch.from_numpy(np.linalg.norm(raw.numpy(), axis=1)))
    assert certainty(raw.half() * 300).dtype == torch.float32  # the squares would overflow
    assert certainty([[3, 4]]).tolist() == [5.0]
    with pytest.raises(ValueError, match="holds NaN or infinity, first in row 0"):
        certainty([[math.nan, 1.0]])
    with pytest.raises(ValueError, match=r"must have shape \(items, size\)"):
        certainty([1.0, 2.0])
