"""The names of the metrics that are no means over queries but say something of the whole set: certainty, diversity.

They are computed only where they are named; `CERTAINTY_METRICS` and `DIVERSITY_METRICS` name them all.
"""

import math
import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from .auroc import certainty_auroc
from .checks import UndefinedMetricError
from .coverage import recall_at_coverage, risk_coverage
from .diversity import cluster_diversity, feature_diversity, intra_inter_ratio
from .scores import NORM, PPK, SIMILARITY

_SUFFIXES = {NORM: "", SIMILARITY: f"_{SIMILARITY}", PPK: f"_{PPK}"}
_COVERAGE = "recall_at_coverage_"
COVERAGES = (50, 80, 90, 95)
_LOWER = {"aurc", "excess_aurc", "feature_diversity", "intra_inter_ratio"}


class CertaintyMetric(NamedTuple):
    """value: of (certainty, correct), both (queries,); score: which certainty."""

    value: Callable[[Tensor, Tensor], float]
    score: str


def certainty_metrics(coverages: Iterable[int]) -> dict[str, CertaintyMetric]:
    """Every metric with every score; `coverages` in percent."""
    values: dict[str, Callable[[Tensor, Tensor], float]] = {
        "certainty_auroc": certainty_auroc,
        "aurc": _area,
        "excess_aurc": _excess_area,
    }
    values |= {f"{_COVERAGE}{percent}": partial(_recall, percent) for percent in coverages}
    return {
        f"{name}{suffix}": CertaintyMetric(value, score)
        for score, suffix in _SUFFIXES.items()
        for name, value in values.items()
    }


def coverages_in(names: Iterable[str]) -> list[int]:
    """The percentages of every recall_at_coverage_<percent> among `names`."""
    endings = "|".join(_SUFFIXES.values())
    found = (re.fullmatch(rf"{_COVERAGE}([1-9]\d?|100)(?:{endings})", name) for name in names)
    return sorted({int(match[1]) for match in found if match})


def diversity_metrics() -> dict[str, Callable[[Tensor, Tensor], float]]:
    """Values of (embeddings, labels)."""
    return {
        "cluster_diversity": cluster_diversity,
        "feature_diversity": _feature_diversity,
        "intra_inter_ratio": intra_inter_ratio,
    }


def lower_is_better(name: str) -> bool:
    """Of the areas of risk, whatever the certainty, of feature diversity (the distance of the singular values from
    uniform ones) and of the intra/inter ratio; of all other metrics more is better."""
    stems = [name.removesuffix(suffix) for suffix in _SUFFIXES.values() if suffix]
    return not _LOWER.isdisjoint((name, *stems))


def or_nan(value: Callable[..., float], *arguments: Any) -> float:
    """NaN where the metric is undefined: one metric of an evaluation must not stop a run."""
    try:
        return value(*arguments)
    except UndefinedMetricError:
        return math.nan


def _area(certainty: Tensor, correct: Tensor) -> float:
    return risk_coverage(certainty, correct).area


def _excess_area(certainty: Tensor, correct: Tensor) -> float:
    return risk_coverage(certainty, correct).excess_area


def _recall(percent: int, certainty: Tensor, correct: Tensor) -> float:
    return recall_at_coverage(certainty, correct, [percent / 100])[percent / 100]


def _feature_diversity(embeddings: Tensor, labels: Tensor) -> float:
    return feature_diversity(embeddings)


CERTAINTY_METRICS = tuple(certainty_metrics(COVERAGES))
DIVERSITY_METRICS = tuple(diversity_metrics())
