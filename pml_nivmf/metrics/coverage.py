r"""Risk and recall when only the most certain items are answered.

The order of items with equal certainty is arbitrary. Every value here is the mean over all orders of such ties: an item
counts with the share of wrong items among the items of the same certainty.
"""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .inputs import as_outcomes, as_scores

_ROUNDING = 1e-9  # 0.07·100 is 7.000000000000001, which means seven items


class RiskCoverage(NamedTuple):
    """coverage: 1/n, 2/n … 1, the share of answered items, most certain first, (n,), float64.

    risk: the share of wrong items among the answered ones, (n,), float64.
    area: AURC, the mean risk over all coverages [Geifman & El-Yaniv 2017]; lower is better.
    """

    coverage: Tensor
    risk: Tensor
    area: float

    @property
    def excess_area(self) -> float:
        """The area minus the area of a certainty that ranks all right items first [Geifman et al. 2019]. 0 is best.

        Unlike the area, it can be compared between models of different accuracy.
        """
        count = len(self.risk)
        right = count - round(float(self.risk[-1]) * count)
        answered = torch.arange(1, count + 1, dtype=torch.double)
        return self.area - float(((answered - right).clamp_min(0) / answered).mean())


def risk_coverage(certainty: Any, correct: Any) -> RiskCoverage:
    """The risk-coverage curve.

    certainty: one number per item, higher is more certain, (items,).
    correct: whether each item is right, booleans or 0 and 1, (items,).
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
    """The share of right items among the most certain ones, for every coverage in (0, 1].

    Of n items, the ⌈coverage·n⌉ most certain are answered. At coverage 1 it is the share of right items.
    """
    risk = risk_coverage(certainty, correct).risk
    recalls = {}
    for share in map(float, coverages):  # floats, because a tensor cannot be looked up as a key
        if not 0 < share <= 1:
            raise ValueError(f"a coverage must be above 0 and at most 1, got {share}")
        answered = max(1, math.ceil(share * len(risk) - _ROUNDING))
        recalls[share] = 1 - float(risk[answered - 1])
    return recalls
