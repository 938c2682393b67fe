"""The von Mises-Fisher distribution as a torch.distributions.Distribution."""

from typing import ClassVar, TypeAlias

import torch
from torch import Size, Tensor
from torch.distributions import Distribution, register_kl
from torch.distributions.constraints import Constraint

from ..functional.pairing import ROWWISE, at_least_float32
from ..functional.sampling import sample_vmf
from ..functional.vmf import kl_distance, log_vmf_normalizer, mean_resultant_length
from .constraints import check_directions, nonnegative_finite, unit_vector

_Shape: TypeAlias = Size | list[int] | tuple[int, ...]


class VonMisesFisher(Distribution):
    r"""Rotationally symmetric distribution on the unit sphere S^{M−1} around `loc`:

        log ζ(x) = log C_M(κ) + κ·⟨x, μ⟩

    Args:
        loc: mean direction μ, unit vectors of shape (..., M), M ≥ 2.
        concentration: κ ≥ 0, shape (...); 0 is the uniform distribution.
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {"loc": unit_vector, "concentration": nonnegative_finite}
    support = unit_vector
    has_rsample = True

    def __init__(self, loc: Tensor, concentration: Tensor | float, validate_args: bool | None = None):
        check_directions(loc)
        concentration = torch.as_tensor(concentration, dtype=loc.dtype, device=loc.device)
        batch_shape = torch.broadcast_shapes(loc.shape[:-1], concentration.shape)
        self.loc = loc.expand(*batch_shape, loc.shape[-1])
        self.concentration = concentration.expand(batch_shape)
        super().__init__(batch_shape, loc.shape[-1:], validate_args=validate_args)

    def expand(self, batch_shape: _Shape, _instance: "VonMisesFisher | None" = None) -> "VonMisesFisher":
        new = self._get_checked_instance(VonMisesFisher, _instance)
        loc = self.loc.expand(Size(batch_shape) + self.event_shape)
        VonMisesFisher.__init__(new, loc, self.concentration.expand(batch_shape), validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def mean(self) -> Tensor:
        """A_M(κ)·μ, inside the unit ball; its length grows with the concentration."""
        return mean_resultant_length(self.concentration, self.event_shape[0]).unsqueeze(-1) * self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def natural(self) -> Tensor:
        """The natural parameter ν = κμ."""
        return self.concentration.unsqueeze(-1) * self.loc

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        inner = (value * self.loc).sum(-1)
        return log_vmf_normalizer(self.concentration, self.event_shape[0]) + self.concentration * inner

    def entropy(self) -> Tensor:
        """−log C_M(κ) − κ·A_M(κ)."""
        dim = self.event_shape[0]
        mean_inner = self.concentration * mean_resultant_length(self.concentration, dim)
        return -log_vmf_normalizer(self.concentration, dim) - mean_inner

    def rsample(self, sample_shape: _Shape = (), antithetic: bool = False) -> Tensor:
        """Reparametrised draws; `antithetic` pairs opposite tangents (see functional.sample_vmf)."""
        return sample_vmf(self.natural, tuple(sample_shape), antithetic=antithetic)


@register_kl(VonMisesFisher, VonMisesFisher)
def _kl_vmf_vmf(p: VonMisesFisher, q: VonMisesFisher) -> Tensor:
    divergence = kl_distance(at_least_float32(p.natural), at_least_float32(q.natural), "exact", ROWWISE)
    return divergence.to(p.loc.dtype)
