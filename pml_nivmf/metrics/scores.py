"""What a certainty can be: the embedding's norm, or how near the nearest neighbour is."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..functional.pairing import ROWWISE
from ..functional.ppk import relative_ppk_distance
from .checks import as_embeddings

NORM, SIMILARITY, PPK = "norm", "similarity", "ppk"


def certainty(embeddings: Any) -> Tensor:
    """‖z‖ of raw embeddings (items, size): the concentrations of the images' von Mises-Fisher, (items,); more is surer.

    Embeddings that were normalised all have certainty 1: pass what the model gives.
    """
    raw = as_embeddings("embeddings", embeddings)
    return torch.linalg.vector_norm(raw, dim=1, dtype=torch.promote_types(raw.dtype, torch.float))


class Spaces(NamedTuple):
    """Queries (queries, size) and references (references, size): as retrieval sees them, and raw."""

    query: Tensor
    reference: Tensor
    raw_query: Tensor
    raw_reference: Tensor


def scores_in_chunks(
    names: Iterable[str], spaces: Spaces, nearest: Tensor, scale: float, rows: int
) -> dict[str, Tensor]:
    """Every score of `names`, (queries,) float64; `nearest` is each query's neighbour among the references, (queries,).

    scale: what embeddings are multiplied by before they are concentrations. rows: queries at a time.
    """
    count = len(nearest)
    scores = {name: nearest.new_empty(count, dtype=torch.double) for name in names}
    for start in range(0, count, rows):
        place = slice(start, start + rows)
        for name, values in scores.items():
            values[place] = _score(name, spaces, place, nearest[place], scale)
    return scores


def _score(name: str, spaces: Spaces, place: slice, index: Tensor, scale: float) -> Tensor:
    if name == NORM:
        return certainty(spaces.raw_query[place]).double()
    if name == SIMILARITY:
        return similarity(spaces.query[place], spaces.reference[index])
    return expected_likelihood(scale * spaces.raw_query[place], scale * spaces.raw_reference[index])


def similarity(query: Tensor, neighbour: Tensor) -> Tensor:
    """−‖q − n‖ of every row; for unit vectors this is the order of the cosine."""
    return -torch.linalg.vector_norm(query.double() - neighbour.double(), dim=1)


def expected_likelihood(query: Tensor, neighbour: Tensor) -> Tensor:
    """log ∫ ζ_q ζ_n of every row, up to a constant: minus the PPK distance of order 1 of the two von Mises-Fisher."""
    return -relative_ppk_distance(query.double(), neighbour.double(), 1.0, ROWWISE)
