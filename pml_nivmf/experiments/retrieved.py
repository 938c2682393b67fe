"""What every test item retrieved, and how certain the model was of it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..metrics import ProbabilisticAccuracyCalculator, certainty
from ..metrics.neighbours import chunk_rows, search_in_chunks, unit
from ..metrics.scores import NORM, PPK, SIMILARITY, expected_likelihood

_NEIGHBOURS = 5


@dataclass(frozen=True)
class Retrieved:
    """Of n queries, nearest neighbours first; all on the CPU."""

    labels: Tensor  # (n,)
    neighbours: Tensor  # indices into the references, (n, k)
    similarity: Tensor  # the cosine of each, or minus the distance where retrieval is "l2", (n, k)
    correct: Tensor  # whether the nearest has the query's label, (n,)
    counted: Tensor  # whether the query has anything to find: only such queries count in metrics, (n,)
    norm: Tensor  # ‖z‖ of the raw embedding, (n,)
    likelihood: Tensor  # log ∫ ζ_q ζ_n with the nearest, up to a constant: minus the PPK distance, (n,)

    def scores(self) -> dict[str, Tensor]:
        """The competing certainties, (n,) each, by the names that the metrics give them."""
        return {NORM: self.norm, SIMILARITY: self.similarity[:, 0], PPK: self.likelihood}


@dataclass(frozen=True)
class Gallery:
    """The clean test items as references, and the rules of the evaluation."""

    embeddings: Tensor  # raw, (items, M)
    labels: Tensor  # (items,)
    calculator: ProbabilisticAccuracyCalculator
    scale: float  # what the loss multiplies embeddings by before they are concentrations

    def retrieve(self, queries: Tensor, own: Tensor, k: int = _NEIGHBOURS) -> Retrieved:
        """The nearest items of every query (n, M), the item it stems from, `own` (n,), left out."""
        k = min(k, len(self.labels) - 1)
        cosine = self.calculator.retrieval == "cosine"
        query, reference = (unit(z) if cosine else z for z in (queries, self.embeddings))
        found = self._nearest_others(query, reference, own, k)
        nearest, labels = found[:, 0], self.labels[own]
        sizes = torch.bincount(self.labels)
        return Retrieved(
            labels=labels.cpu(),
            neighbours=found.cpu(),
            similarity=_similarities(query, reference, found, cosine).cpu(),
            correct=(self.labels[nearest] == labels).cpu(),
            counted=(sizes[labels] > 1).cpu(),
            norm=certainty(queries).cpu(),
            likelihood=expected_likelihood(self.scale * queries, self.scale * self.embeddings[nearest]).cpu(),
        )

    def _nearest_others(self, query: Tensor, reference: Tensor, own: Tensor, k: int) -> Tensor:
        rows = chunk_rows(k + 1)
        chunks = search_in_chunks(self.calculator.knn_func, query, reference, k + 1, rows, False)
        found = torch.cat([indices for _, _, indices in chunks])  # (n, k+1)
        is_own = found == own[:, None]
        is_own[~is_own.any(dim=1), -1] = True  # far from its own item, as a degraded image may be
        return found[~is_own].view(len(found), k)


def _similarities(query: Tensor, reference: Tensor, found: Tensor, cosine: bool) -> Tensor:
    """(n, k); a neighbour at a time, since (n, k, M) numbers may be many."""
    near = (reference[column] for column in found.unbind(dim=1))
    return torch.stack([(query * z).sum(-1) if cosine else -(query - z).norm(dim=-1) for z in near], dim=1)
