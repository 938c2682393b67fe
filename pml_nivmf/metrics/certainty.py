"""Certainty of single queries: whether it predicts right answers, and the risk if only certain queries are answered."""

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.nn import functional as F

from ..functional.pairing import ROWWISE
from ..functional.vmf import relative_ppk_distance
from .inputs import UndefinedMetricError, as_embeddings, as_scored, as_scores, or_nan

NORM, SIMILARITY, PPK = "norm", "similarity", "ppk"
_SUFFIXES = {"": NORM, f"_{SIMILARITY}": SIMILARITY, f"_{PPK}": PPK}
_ROUNDING = 1e-9  # 0.07·100 is 7.000000000000001, which means seven items


def certainty(embeddings: Any) -> Tensor:
    """‖z‖ of raw embeddings (items, size), (items,): the concentration κ of each image's von Mises-Fisher distribution.

    Normalised embeddings all have certainty 1: pass the output of the model.
    """
    raw = as_embeddings("embeddings", embeddings)
    return torch.linalg.vector_norm(raw, dim=1, dtype=torch.promote_types(raw.dtype, torch.float))


def similarity(query: Tensor, neighbour: Tensor, retrieval: str) -> Tensor:
    """The cosine of every row for retrieval "cosine", −‖q − n‖ for "l2"; float64, (queries,)."""
    query, neighbour = query.double(), neighbour.double()
    if retrieval == "cosine":
        return F.cosine_similarity(query, neighbour)
    return -torch.linalg.vector_norm(query - neighbour, dim=1)


def certainty_scores(query: Tensor, nearest: Tensor, retrieval: str, scale: float) -> dict[str, Tensor]:
    """Three competing certainties of every query, float64, (queries,) each, from raw embeddings (queries, size).

    norm: ‖z‖. similarity: to the nearest neighbour. ppk: log ∫ ζ_q ζ_n up to a constant, minus the expected-likelihood
    distance to the nearest neighbour, for embeddings multiplied by `scale`, as in the loss.
    """
    return {
        NORM: torch.linalg.vector_norm(query, dim=1).double(),
        SIMILARITY: similarity(query, nearest, retrieval),
        PPK: -relative_ppk_distance(scale * query.double(), scale * nearest.double(), 1.0, ROWWISE),
    }


def certainty_auroc(certainty: Any, correct: Any) -> float:
    r"""P(c_right > c_wrong) + ½·P(c_right = c_wrong) for a random right and a random wrong item: the area under the ROC
    curve of `certainty` as a predictor of `correct`. ½ is chance, 1 is perfect.

    With `correct` = "the nearest neighbour is of the query's class" it is the recall-AUROC of the uncertainty
    literature [Kirchhof et al. 2023, URL].

    certainty, correct: see `risk_coverage`.

    Raises UndefinedMetricError, a ValueError, if all items are right or all are wrong.
    """
    scores, right = as_scored(certainty, correct)
    positives = int(right.sum())
    if positives in (0, len(right)):
        raise UndefinedMetricError(f"an AUROC needs right and wrong items, got {positives} right of {len(right)}")
    return float(roc_auc_score(right.numpy(), scores.numpy()))


def threshold_for_precision(certainty: Any, correct: Any, precision: float) -> float:
    """The lowest threshold t such that at least a share `precision` of the items with certainty ≥ t is right.

    Choose it on validation data and refuse to answer queries below it.
    Raises UndefinedMetricError, a ValueError, if no threshold reaches the precision.
    """
    scores, right = as_scored(certainty, correct)
    if not 0 < precision <= 1:
        raise ValueError(f"precision must be above 0 and at most 1, got {precision!r}")
    thresholds, group, counts = scores.unique(return_inverse=True, return_counts=True)
    answered = [values.flip(0).cumsum(0).flip(0) for values in (torch.bincount(group, weights=right), counts)]
    reached = answered[0] / answered[1]  # the precision of the items with certainty ≥ each threshold
    enough = thresholds[reached >= precision * (1 - 1e-12)]
    if len(enough) == 0:
        raise UndefinedMetricError(f"no threshold reaches a precision of {precision}: the best is {reached.max():.4g}")
    return float(enough.min())


def share_less_certain(certainty_clean: Any, certainty_degraded: Any) -> float:
    """The share of images whose certainty decreases when they are degraded, in [0, 1].

    Both arguments are (images,), in the same order. A certainty that ignores the degradation gets about ½.
    """
    clean = as_scores("certainty_clean", certainty_clean)
    return float((as_scores("certainty_degraded", certainty_degraded, len(clean)) < clean).double().mean())


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
    """The risk-coverage curve, as the mean over all orders of items with equal certainty.

    certainty: one number per item, higher is more certain, (items,).
    correct: whether each item is right, booleans or 0 and 1, (items,).
    """
    scores, right = as_scored(certainty, correct)
    _, group, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    expected = torch.zeros_like(counts, dtype=torch.double).index_add(0, group, 1 - right) / counts
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


def _recall_at(percent: int, certainty: Tensor, correct: Tensor) -> float:
    return next(iter(recall_at_coverage(certainty, correct, [percent / 100]).values()))


_MEASURES: dict[str, Callable[[Tensor, Tensor], float]] = {
    "certainty_auroc": certainty_auroc,
    "aurc": lambda certainty, correct: risk_coverage(certainty, correct).area,
    "excess_aurc": lambda certainty, correct: risk_coverage(certainty, correct).excess_area,
    **{f"recall_at_coverage_{percent}": partial(_recall_at, percent) for percent in (50, 80, 90, 95)},
}
_BY_NAME = {f"{name}{suffix}": (name, score) for suffix, score in _SUFFIXES.items() for name in _MEASURES}
CERTAINTY_METRICS = tuple(_BY_NAME)


def certainty_metric(name: str, scores: dict[str, Tensor], correct: Tensor, **_: Any) -> float:
    """The value of one certainty metric; NaN if it is undefined, because one metric must not stop an evaluation.

    scores: the results of `certainty_scores`, (queries,) each. correct: (queries,). PML passes more keywords.
    """
    measure, score = _BY_NAME[name]
    return or_nan(_MEASURES[measure], scores[score], correct) if len(correct) else math.nan
