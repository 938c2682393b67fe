r"""Retrieval metrics of single queries, from which of their neighbours are of their class.

With m_i = 1 if the i-th nearest neighbour has the query's label and R the number of items that do, the query itself
left out, precision at rank i is P_i = (m_1 + … + m_i)/i. Averages over queries are taken elsewhere.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Matches:
    """What is known of a chunk of queries.

    same: m_i, bool, (queries, k), nearest first.
    relevant: R, (queries,).
    counted: R, plus one where the query itself is among the references, (queries,).
    """

    same: Tensor
    relevant: Tensor
    counted: Tensor

    def nearest(self, k: int) -> "Matches":
        """The same queries, their k nearest neighbours only."""
        return Matches(self.same[:, :k], self.relevant, self.counted)


def hit(matches: Matches) -> Tensor:
    """Recall@k of the retrieval literature: max(m_1 … m_k)."""
    return matches.same.any(dim=1).double()


def reciprocal_rank(matches: Matches) -> Tensor:
    """1/i of the first m_i = 1, zero if there is none among the neighbours."""
    found = matches.same.any(dim=1)
    first = matches.same.byte().argmax(dim=1) + 1 if matches.same.shape[1] else torch.ones_like(found)
    return found / first.double()


def r_precision(matches: Matches) -> Tensor:
    """(m_1 + … + m_R)/R [Musgrave et al. 2020, A Metric Learning Reality Check]."""
    return (matches.same & _within_r(matches)).sum(dim=1) / matches.relevant.double()


def average_precision_at_r(matches: Matches) -> Tensor:
    """MAP@R of one query: Σ_{i ≤ R} m_i·P_i / R [Musgrave et al. 2020]."""
    return _summed_precision(matches.same & _within_r(matches)) / matches.relevant


def average_precision(matches: Matches) -> Tensor:
    """Σ_{i ≤ k} m_i·P_i / R: PML's denominator, also where R > k."""
    return _summed_precision(matches.same) / matches.relevant


def average_precision_with_query(matches: Matches) -> Tensor:
    """Σ_{i ≤ k} m_i·P_i / (R+1): the denominator of the deep metric learning literature's mAP@1000 code.

    It counts the class with the query in it, so a perfect ranking scores R/(R+1). Where queries are no references, the
    two denominators are the same.
    """
    return _summed_precision(matches.same) / matches.counted


def recall_at_k(neighbour_labels: Tensor, query_labels: Tensor, ks: Iterable[int]) -> dict[int, float]:
    """The share of queries with at least one item of their class among the k nearest, for every k of `ks`.

    neighbour_labels: (queries, neighbours), nearest first, the query itself left out.
    query_labels: (queries,).

    All rows count, also queries without any other item of their class.
    """
    if neighbour_labels.ndim != 2 or len(neighbour_labels) != len(query_labels):
        raise ValueError(
            f"neighbour_labels must have shape (queries, neighbours) with {len(query_labels)} queries, "
            f"got {tuple(neighbour_labels.shape)}"
        )
    same = neighbour_labels == query_labels[:, None]
    recalls = {}
    for k in ks:
        if not 1 <= k <= same.shape[1]:
            raise ValueError(f"k must be between 1 and the {same.shape[1]} neighbours given, got {k}")
        recalls[k] = same[:, :k].any(dim=1).double().mean().item()
    return recalls


def _ranks(same: Tensor) -> Tensor:
    return torch.arange(1, same.shape[1] + 1, device=same.device, dtype=torch.double)


def _within_r(matches: Matches) -> Tensor:
    return _ranks(matches.same) <= matches.relevant[:, None]


def _summed_precision(same: Tensor) -> Tensor:
    """Σ_i m_i·P_i in float64."""
    return (same.cumsum(dim=1, dtype=torch.double) / _ranks(same) * same).sum(dim=1)
