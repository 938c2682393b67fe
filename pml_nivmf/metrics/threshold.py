"""When to refuse an answer."""

from typing import Any

import torch

from .checks import UndefinedMetricError, as_outcomes, as_scores


def threshold_for_precision(certainty: Any, correct: Any, precision: float) -> float:
    """The lowest threshold t such that, among the items with certainty ≥ t, a share of at least `precision` is right.

    Choose it on validation data and refuse queries below it. Items that are equally certain are answered together or
    not at all. Raises UndefinedMetricError, a ValueError, where no threshold is high enough.
    """
    scores = as_scores("certainty", certainty)
    right = as_outcomes("correct", correct, len(scores))
    if not 0 < precision <= 1:
        raise ValueError(f"precision must be a share above 0 and at most 1, got {precision!r}")
    values, group, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    hits = torch.zeros_like(counts, dtype=torch.double).index_add(0, group, right)
    answered, answered_right = (x.flip(0).cumsum(0).flip(0) for x in (counts, hits))  # with certainty ≥ values
    enough = answered_right >= precision * answered * (1 - 1e-12)  # 0.9·10 must not ask for more than nine
    if not bool(enough.any()):
        best = float((answered_right / answered).max())
        raise UndefinedMetricError(
            f"no threshold reaches a precision of {precision}: the best is {best:.4g}. Ask for less"
        )
    return float(values[enough][0])
