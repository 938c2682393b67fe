"""Exact nearest neighbours, a chunk of queries at a time."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

Search = Callable[[Tensor, int, Tensor, bool], tuple[Tensor, Tensor]]
"""PML's knn_func: (query, k, reference, ref_includes_query) -> distances, indices, both (queries, k)."""

CHUNK_BYTES = 256 * 2**20
BYTES_PER_NEIGHBOUR = 64  # distances, indices, labels and the float64 ranks and precisions made from them


def chunk_rows(neighbours: int) -> int:
    """How many queries keep everything made of one chunk near CHUNK_BYTES."""
    return max(1, CHUNK_BYTES // (BYTES_PER_NEIGHBOUR * max(1, neighbours)))


def unit(embeddings: Tensor) -> Tensor:
    """z/‖z‖, zero where z is zero; the norm in float64, where no float32 square under- or overflows."""
    norms = torch.linalg.vector_norm(embeddings, dim=1, keepdim=True, dtype=torch.double).to(embeddings.dtype)
    return embeddings / norms.masked_fill(norms == 0, 1.0)


def search_in_chunks(
    search: Search, query: Tensor, reference: Tensor, k: int, rows: int, ref_includes_query: bool
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """For every chunk of `rows` queries: its place, distances and indices of the k nearest references, (rows, k).

    k may be at most the number of references, less one where they start with the queries: a query is not its own
    neighbour.
    """
    own = int(ref_includes_query)
    if not 0 <= k <= len(reference) - own:
        raise ValueError(f"k={k} neighbours were asked of {len(reference) - own}: there are no more")
    for start in range(0, len(query), rows):
        place = slice(start, min(start + rows, len(query)))
        distances, indices = search(query[place], k + own, reference, False)
        if bool((indices < 0).any()):
            raise ValueError(f"knn_func found fewer than k={k} neighbours: use an exact index, or a smaller k")
        if ref_includes_query:
            keep = _without_self(indices, start)
            distances, indices = (found[keep].view(len(found), k) for found in (distances, indices))
        yield place, distances, indices


def _without_self(indices: Tensor, start: int) -> Tensor:
    """True for all but one neighbour a row: the query itself or, where duplicates crowd it out, the last."""
    own = torch.arange(start, start + len(indices), device=indices.device)
    is_self = indices == own[:, None]
    is_self[~is_self.any(dim=1), -1] = True
    return ~is_self
