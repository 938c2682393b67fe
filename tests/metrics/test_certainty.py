"""Certainty as a predictor of right answers: AUROC, risk and coverage, thresholds, rank correlation, degradation."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pml_nivmf.metrics import (
    UndefinedMetricError,
    certainty,
    certainty_auroc,
    recall_at_coverage,
    risk_coverage,
    share_less_certain,
    threshold_for_precision,
)

# Few distinct values, so that ties are common.
ITEMS = st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=40)


def split(items):
    scores, correct = zip(*items, strict=True)
    return list(scores), list(correct)


def random_items(count, levels, seed=0):
    """`levels`: the number of distinct certainties."""
    generator = np.random.default_rng(seed)
    scores = generator.integers(0, levels, count) / levels
    return scores, generator.random(count) < 0.3 + 0.4 * scores


@settings(max_examples=40)
@given(ITEMS)
def test_auroc_by_counting_pairs(items):
    scores, correct = split(items)
    right = [score for score, is_right in items if is_right]
    wrong = [score for score, is_right in items if not is_right]
    if not right or not wrong:
        with pytest.raises(UndefinedMetricError, match=f"got {len(right)} right of {len(items)}"):
            certainty_auroc(scores, correct)
        return
    pairs = [(a > b) + 0.5 * (a == b) for a in right for b in wrong]
    assert certainty_auroc(scores, correct) == pytest.approx(np.mean(pairs), abs=1e-12)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=6))
def test_curve_is_the_mean_over_all_orders_of_ties(items):
    curves = []
    for order in itertools.permutations(items):
        ranked = sorted(order, key=lambda item: -item[0])  # stable: ties stay in the order of the permutation
        wrong = np.cumsum([not correct for _, correct in ranked])
        curves.append(wrong / np.arange(1, len(items) + 1))
    curve = risk_coverage(*split(items))
    np.testing.assert_allclose(curve.risk, np.mean(curves, axis=0), atol=1e-12)
    np.testing.assert_allclose(curve.coverage, np.arange(1, len(items) + 1) / len(items))
    assert curve.area == pytest.approx(np.mean(curves), abs=1e-12)
    best = risk_coverage(split(items)[1], split(items)[1]).area  # right items first
    assert curve.excess_area == pytest.approx(curve.area - best, abs=1e-12)


def test_recall_at_coverage_by_hand():
    scores, correct = [10, 9, 8, 7, 6, 5, 4, 3, 2, 1], [1, 1, 1, 0, 1, 0, 1, 0, 0, 0]
    expected = {0.01: 1.0, 0.3: 1.0, 0.4: 3 / 4, 0.5: 4 / 5, 0.55: 4 / 6, 0.7: 5 / 7, 1.0: 0.5}
    assert recall_at_coverage(scores, correct, expected) == pytest.approx(expected)
    # 0.07·100 is 7.000000000000001: seven items, and the eighth is the first wrong one
    assert recall_at_coverage(range(100, 0, -1), [1] * 7 + [0] * 93, [0.07]) == {0.07: 1.0}
    with pytest.raises(ValueError, match="a coverage must be above 0 and at most 1"):
        recall_at_coverage(scores, correct, [0])


@pytest.mark.parametrize("precision", [0.4, 0.7, 0.9])
@pytest.mark.parametrize("levels", [20, 10**9])
def test_threshold_by_trying_all(precision, levels):
    scores, correct = random_items(300, levels)
    enough = [t for t in scores if correct[scores >= t].mean() >= precision]
    if enough:
        assert threshold_for_precision(scores, correct, precision) == min(enough)
    else:
        with pytest.raises(UndefinedMetricError, match=f"no threshold reaches a precision of {precision}: the best is"):
            threshold_for_precision(scores, correct, precision)
    assert threshold_for_precision(range(10), [0] + [1] * 9, 0.9) == 0.0  # in spite of rounding


def test_share_less_certain():
    assert share_less_certain([3.0, 3.0, 3.0, 3.0], [1.0, 2.0, 3.0, 4.0]) == 0.5


@pytest.mark.parametrize(
    ("scores", "correct", "message"),
    [
        ([1.0, math.nan, math.inf], [True, False, True], "certainty must not contain NaN or infinity, found in row 1"),
        ([1.0, 2.0], [True], r"correct must have shape \(2,\), got \(1,\)"),
        ([1.0, 2.0], [0, 2], "correct must be true or false, 1 or 0"),
        ([], [], r"must have shape \(items,\), got \(0,\)"),
    ],
)
def test_invalid_input(scores, correct, message):
    with pytest.raises(ValueError, match=message):
        risk_coverage(scores, correct)


def test_certainty_is_the_norm():
    raw = torch.randn(10, 5, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(certainty(raw), torch.from_numpy(np.linalg.norm(raw.numpy(), axis=1)))
    assert certainty(raw.half() * 300).dtype == torch.float32  # squares would overflow in float16
    assert certainty([[3, 4]]).tolist() == [5.0]
    with pytest.raises(ValueError, match=r"must have shape \(items, size\)"):
        certainty([1.0, 2.0])
