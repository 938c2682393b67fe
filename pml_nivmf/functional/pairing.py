"""Two ways to compare queries with references, so that every formula is written once.

`CROSS` compares each of B queries with each of C references, (B, M) × (C, M) -> (B, C), by matrix products.
`ROWWISE` compares the i-th query with the i-th reference, (..., M) × (..., M) -> (...), with broadcasting.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Pairing:
    """`product`: inner products of queries and references; `per_query`: makes a value per query broadcast with them."""

    product: Callable[[Tensor, Tensor], Tensor]
    per_query: Callable[[Tensor], Tensor]


CROSS = Pairing(product=lambda query, reference: query @ reference.T, per_query=lambda value: value.unsqueeze(-1))
ROWWISE = Pairing(product=lambda query, reference: (query * reference).sum(-1), per_query=lambda value: value)


def squared_norm(vectors: Tensor) -> Tensor:
    """‖v‖² over the last axis."""
    return (vectors * vectors).sum(-1)


def unit_vectors(vectors: Tensor) -> Tensor:
    """v/‖v‖ over the last axis; the zero vector stays zero and has the gradient of v itself, not 1/0."""
    norm = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / norm.masked_fill(norm == 0, 1.0)


def detach_zero_rows(vectors: Tensor) -> Tensor:
    """The same vectors; those no longer than 1e-12 get no gradient.

    For functions that divide by max(‖v‖, 1e-12), as PML's normalisation does: the gradient would be 1e12.
    """
    norm = torch.linalg.vector_norm(vectors.detach(), dim=-1, keepdim=True)
    return torch.where(norm <= 1e-12, vectors.detach(), vectors)


def in_dtype_of(result: Tensor, argument: Tensor) -> Tensor:
    """`result` in the argument's dtype if that is floating point; an integer dtype would truncate it."""
    return result.to(argument.dtype) if argument.is_floating_point() else result


def at_least_float32(tensor: Tensor) -> Tensor:
    """Convert half precision to float32: it can represent neither ‖z‖² nor a log-density."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
