"""Constraints for torch.distributions' validation of arguments and samples."""

import math

import torch
from torch import Tensor
from torch.distributions import constraints

from ..functional.pairing import at_least_float32

# Allowed deviation of a length from one; half precision computes unit vectors to about three digits.
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}
_HALF_TOLERANCE = 1e-2


class _UnitVector(constraints.Constraint):
    """Vectors of Euclidean length one along the last axis."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(at_least_float32(value), dim=-1)
        return (length - 1).abs() < _TOLERANCE.get(value.dtype, _HALF_TOLERANCE)


class _PositiveFinite(constraints.Constraint):
    def check(self, value: Tensor) -> Tensor:
        return (value > 0) & torch.isfinite(value)


unit_vector = _UnitVector()
nonnegative_finite = constraints.half_open_interval(0.0, math.inf)
positive_finite_vector = constraints.independent(_PositiveFinite(), 1)


def check_directions(loc: Tensor) -> None:
    """Check the rank, the width and the dtype of a tensor of directions, which constraints do not cover."""
    if loc.ndim < 1 or loc.shape[-1] < 2:
        raise ValueError(f"loc must have shape (..., M) with M of at least 2, got {tuple(loc.shape)}")
    if not loc.is_floating_point():
        raise ValueError(f"loc must be floating point, got {loc.dtype}")
