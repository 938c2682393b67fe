"""The names of the metrics that are means over queries, and how many neighbours each looks at."""

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from torch import Tensor

from .query_metrics import (
    Matches,
    average_precision,
    average_precision_at_r,
    average_precision_with_query,
    hit,
    r_precision,
    reciprocal_rank,
)

RELEVANT, K = "R", "k"
_RECALL = "recall_at_"


class QueryMetric(NamedTuple):
    """values: the metric of every query, (queries,).

    neighbours: how many it looks at: a number, RELEVANT (what the largest class has to find) or K (the calculator's k).
    """

    values: Callable[[Matches], Tensor]
    neighbours: int | str


def query_metrics(recall_at: Iterable[int]) -> dict[str, QueryMetric]:
    metrics = {
        "precision_at_1": QueryMetric(hit, 1),
        "r_precision": QueryMetric(r_precision, RELEVANT),
        "mean_average_precision_at_r": QueryMetric(average_precision_at_r, RELEVANT),
        "mean_average_precision": QueryMetric(average_precision, K),
        "mean_reciprocal_rank": QueryMetric(reciprocal_rank, K),
        "map_at_1000": QueryMetric(average_precision, 1000),
        "map_at_1000_with_query": QueryMetric(average_precision_with_query, 1000),
    }
    return metrics | {f"{_RECALL}{k}": QueryMetric(hit, k) for k in recall_at}


def recalls_in(names: Iterable[str]) -> list[int]:
    """The k of every recall_at_<k> among `names`."""
    found = (re.fullmatch(rf"{_RECALL}([1-9]\d*)", name) for name in names)
    return [int(match[1]) for match in found if match]
