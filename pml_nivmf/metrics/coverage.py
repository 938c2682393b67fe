r"""Answering only the most certain items: what is then wrong, and how much is left.

Items with the same certainty stand in no order. Everything here is the mean over all orders of such ties: each item
counts with the share of wrong ones among the items that are exactly as certain as it is.
"""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .checks import as_outcomes, as_scores

_ROUNDING = 1e-9  # 0.07·100 is 7.000000000000001, and seven items are meant


class RiskCoverage(NamedTuple):
    """coverage: 1/n, 2/n … 1, the share of items answered, the most certain first, (n,), float64.

    risk: the share of wrong ones among them, (n,), float64.
    area: AURC, the mean risk over all coverages [Geifman & El-Yaniv 2017]; lower is better.
    """

    coverage: Tensor
    risk: Tensor
    area: float

    @property
    def excess_area(self) -> float:
        """The area beyond that of a certainty which puts all right items first [Geifman et al. 2019]: unlike the area
        it compares models that are right more and less often. 0 is best."""
        count = len(self.risk)
        right = count - round(float(self.risk[-1]) * count)
        answered = torch.arange(1, count + 1, dtype=torch.double)
        return self.area - float(((answered - right).clamp_min(0) / answered).mean())


def risk_coverage(certainty: Any, correct: Any) -> RiskCoverage:
    """The risk-coverage curve of `certainty` (items,), higher is surer, for `correct` (items,), booleans or 0 and 1.

    All right: the risk is 0 everywhere; all wrong: 1 everywhere.
    """
    scores = as_scores("certainty", certainty)
    wrong = 1 - as_outcomes("correct", correct, len(scores))
    _, group, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    expected = torch.zeros_like(counts, dtype=torch.double).index_add(0, group, wrong) / counts
    ordered = expected[group.sort(descending=True).values]  # groups are numbered by ascending certainty
    answered = torch.arange(1, len(scores) + 1, dtype=torch.double)
    risk = ordered.cumsum(0) / answered
    return RiskCoverage(answered / len(scores), risk, float(risk.mean()))


def recall_at_coverage(certainty: Any, correct: Any, coverages: Iterable[float]) -> dict[float, float]:
    """The share of right ones among the most certain items, for every coverage in (0, 1].

    Of n items, ⌈coverage·n⌉ are answered: at least the share asked for. At 1 it is the plain share of right ones.
    """
    if isinstance(coverages, str) or not isinstance(coverages, Iterable):
        raise ValueError(f"coverages must be a list of shares of the items, got {coverages!r}: write [{coverages!r}]")
    risk = risk_coverage(certainty, correct).risk
    shares = [float(coverage) for coverage in coverages]  # tensors would be keys that nobody can look up
    return {share: 1 - float(risk[_answered(share, len(risk)) - 1]) for share in shares}


def _answered(coverage: float, count: int) -> int:
    if not 0 < coverage <= 1:
        raise ValueError(f"a coverage must be a share of the items above 0 and at most 1, got {coverage!r}")
    return max(1, math.ceil(coverage * count - _ROUNDING))
