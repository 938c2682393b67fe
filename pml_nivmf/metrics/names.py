"""Names of the metrics that describe a whole set instead of being a mean over queries."""

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from .certainty import NORM, PPK, SIMILARITY, certainty_auroc
from .coverage import recall_at_coverage, risk_coverage
from .diversity import cluster_diversity, feature_diversity, intra_inter_ratio
from .inputs import UndefinedMetricError

_SUFFIXES = {"": NORM, f"_{SIMILARITY}": SIMILARITY, f"_{PPK}": PPK}
_COVERAGE = "recall_at_coverage_"
_STEMS = ("certainty_auroc", "aurc", "excess_aurc", *(f"{_COVERAGE}{percent}" for percent in (50, 80, 90, 95)))
_CERTAINTY = re.compile(
    rf"(?P<stem>certainty_auroc|(excess_)?aurc|{_COVERAGE}(?P<percent>[1-9]\d?|100))(?P<suffix>{'|'.join(_SUFFIXES)})"
)
DIVERSITY: dict[str, Callable[[Tensor, Tensor], float]] = {
    "cluster_diversity": cluster_diversity,
    "cluster_diversity_per_class": partial(cluster_diversity, per_class=True),
    "feature_diversity": lambda embeddings, labels: feature_diversity(embeddings),
    "intra_inter_ratio": intra_inter_ratio,
}

CERTAINTY_METRICS = tuple(f"{stem}{suffix}" for suffix in _SUFFIXES for stem in _STEMS)
DIVERSITY_METRICS = tuple(DIVERSITY)


def is_certainty_metric(name: str) -> bool:
    """True for CERTAINTY_METRICS and for recall_at_coverage_<percent> with any percent from 1 to 100."""
    return _CERTAINTY.fullmatch(name) is not None


def certainty_metric(name: str, scores: dict[str, Tensor], correct: Tensor, **_: Any) -> float:
    """The value of one certainty metric; NaN if it is undefined, because one metric must not stop an evaluation.

    scores: the results of `certainty_scores`, (queries,) each. correct: (queries,). PML passes more keywords.
    """
    match = _CERTAINTY.fullmatch(name)
    assert match is not None, f"{name!r} is not a certainty metric"
    certainty = scores[_SUFFIXES[match["suffix"]]]
    if len(correct) == 0:
        return math.nan
    if match["percent"]:
        share = int(match["percent"]) / 100
        return recall_at_coverage(certainty, correct, [share])[share]
    if match["stem"] == "certainty_auroc":
        return or_nan(certainty_auroc, certainty, correct)
    curve = risk_coverage(certainty, correct)
    return curve.area if match["stem"] == "aurc" else curve.excess_area


def or_nan(metric: Callable[[Tensor, Tensor], float], first: Tensor, second: Tensor) -> float:
    """The value of the metric; NaN if it is undefined."""
    try:
        return metric(first, second)
    except UndefinedMetricError:
        return math.nan


def lower_is_better(name: str) -> bool:
    """True for the areas of risk, the intra/inter ratio, and NLL and calibration error of galleries."""
    match = _CERTAINTY.fullmatch(name)
    return (
        name == "intra_inter_ratio"
        or name.endswith(("_shot_nll", "_shot_ece"))
        or (match is not None and "aurc" in match["stem"])
    )
