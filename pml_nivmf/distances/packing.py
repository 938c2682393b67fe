"""nivMF references as one tensor, so that they pass through PML's interfaces, which know a single `ref_emb`."""

import torch
from torch import Tensor

from ..functional.finite import first_false
from ..functional.pairing import at_least_float32, unit_vectors

# An embedding of almost no length, read as a reference, is the uniform distribution: K = tiny·I, any direction.
_SMALLEST_CONCENTRATION = 1e-8


def pack_nivmf(loc: Tensor, concentration: Tensor) -> Tensor:
    """(C, M) directions μ and (C, M) concentrations κ_m > 0 (or any shape that broadcasts) -> (C, 2M) references."""
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
    _check_positive(norm.masked_fill(zero, 1.0))
    return direction, torch.log(norm.masked_fill(zero, _SMALLEST_CONCENTRATION)).expand_as(reference)


def _check_direction(direction: Tensor) -> None:
    norm = torch.linalg.vector_norm(at_least_float32(direction.detach()), dim=1)
    fine = torch.isfinite(norm) & (norm > 0)
    _check_rows(direction, fine, "nivMF directions must be finite and not zero")


def _check_positive(concentration: Tensor) -> None:
    fine = ((concentration > 0) & torch.isfinite(concentration)).all(dim=1)
    _check_rows(concentration, fine, "nivMF concentrations must be positive and finite")
    # Sums of κ⁴ and their gradients must not overflow, neither of κ itself nor relative to its mean.
    working = at_least_float32(concentration.detach())
    largest = (torch.finfo(working.dtype).max / 4096) ** 0.25
    highest, lowest = working.amax(dim=1), working.amin(dim=1)
    fine = (highest < largest) & (highest < largest * lowest) & (lowest > 1 / largest)
    limits = f"between {1 / largest:.1e} and {largest:.1e}, those of a row within a factor of {largest:.1e}"
    _check_rows(concentration, fine, f"nivMF concentrations in {working.dtype} must be {limits}")


def _check_rows(values: Tensor, fine: Tensor, rule: str) -> None:
    if (row := first_false(fine, rule)) is not None:
        raise ValueError(f"{rule}, row {row} is {values[row].tolist()}")
