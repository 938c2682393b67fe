"""Ranks with ties, and the correlation of ranks."""

from typing import Any

import torch
from torch import Tensor

from .checks import UndefinedMetricError, as_scores


def mid_ranks(values: Tensor) -> Tensor:
    """Ranks 1 … n, ascending, of `values` (n,); equal values share the mean of their ranks."""
    _, group, counts = torch.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum(0)  # the rank of the last member of every group of equal values
    return (last - (counts - 1) / 2.0).double()[group]


def spearman_correlation(first: Any, second: Any) -> float:
    """The Pearson correlation of the mid-ranks of two lists of numbers, in [−1, 1], such as strength of a degradation
    and certainty.

    Raises UndefinedMetricError, a ValueError, where one of them is constant.
    """
    x, y = as_scores("first", first), as_scores("second", second)
    if len(x) != len(y):
        raise ValueError(f"first and second must have the same length, got {len(x)} and {len(y)}")
    for name, values in (("first", x), ("second", y)):
        if bool((values == values[0]).all()):
            raise UndefinedMetricError(f"{name} holds {float(values[0])} only: a correlation needs values that differ")
    x, y = (ranks - ranks.mean() for ranks in (mid_ranks(x), mid_ranks(y)))
    return float((x @ y) / (x.norm() * y.norm()))
