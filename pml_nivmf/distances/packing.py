"""nivMF references as one tensor, so that they pass through PML's interfaces, which know a single `ref_emb`."""

import torch
from torch import Tensor

from ..functional.pairing import unit_vectors

# An embedding of zero length, read as a reference, is the uniform distribution: K = tiny·I in any direction.
_SMALLEST_CONCENTRATION = 1e-12


def pack_nivmf(loc: Tensor, concentration: Tensor) -> Tensor:
    """(C, M) mean directions and (C, M) concentrations κ_m > 0 (or any shape that broadcasts) -> (C, 2M) references."""
    if loc.ndim != 2:
        raise ValueError(f"loc must have shape (classes, M), got {tuple(loc.shape)}")
    try:
        concentration = concentration.expand_as(loc)
    except RuntimeError:
        shapes = f"{tuple(concentration.shape)} and {tuple(loc.shape)}"
        raise ValueError(f"concentration and loc must have matching shapes, got {shapes}") from None
    _check_direction(loc)
    _check_positive(concentration)
    return torch.cat([loc, concentration], dim=1)


def unpack_nivmf(reference: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """(direction, log κ_m), both (C, M), from packed (C, 2M) references or from (C, M) embeddings, K = ‖z‖·I."""
    if reference.shape[1] == 2 * dim:
        direction, concentration = reference.split(dim, dim=1)
        _check_direction(direction)
        _check_positive(concentration)
        return unit_vectors(direction), torch.log(concentration)
    norm = torch.linalg.vector_norm(reference, dim=1, keepdim=True)
    zero = norm < _SMALLEST_CONCENTRATION
    first_axis = torch.zeros_like(reference)
    first_axis[:, 0] = 1
    direction = torch.where(zero, first_axis, unit_vectors(reference))
    return direction, torch.log(norm.masked_fill(zero, _SMALLEST_CONCENTRATION)).expand_as(reference)


def _check_direction(direction: Tensor) -> None:
    fine = torch.isfinite(direction).all(dim=1) & (direction != 0).any(dim=1)
    _check_rows(direction, fine, "nivMF directions must be finite and not zero")


def _check_positive(concentration: Tensor) -> None:
    fine = ((concentration > 0) & torch.isfinite(concentration)).all(dim=1)
    _check_rows(concentration, fine, "nivMF concentrations must be positive and finite")


def _check_rows(values: Tensor, fine: Tensor, rule: str) -> None:
    if not bool(fine.all()):
        row = int((~fine).nonzero()[0])
        raise ValueError(f"{rule}, row {row} is {values[row].tolist()}")
