"""The non-isotropic von Mises-Fisher distribution as a torch.distributions.Distribution."""

from typing import ClassVar, TypeAlias

import torch
from torch import Size, Tensor
from torch.distributions import Distribution
from torch.distributions.constraints import Constraint

from ..functional.nivmf import check_normalizer, nivmf_terms, relative_nivmf_log_density
from ..functional.pairing import ROWWISE, at_least_float32, unit_vectors
from ..functional.sampling import sample_vmf
from ..functional.vmf import log_uniform_density
from .constraints import positive_finite_vector, unit_vector

_MODE_MAX_STEPS = 10_000

_Shape: TypeAlias = Size | list[int] | tuple[int, ...]


class NonIsotropicVonMisesFisher(Distribution):
    r"""von Mises-Fisher distribution with one concentration per dimension, K = diag(κ_1 … κ_M), κ̃ = ‖Kμ‖:

        log ρ(x) = log C_M(κ̃) + log D + κ̃·cos(Kx, Kμ)

    With `normalizer="exact"`, log D = Σ log κ_m − M·log‖Kx‖: it is the law of K⁻¹x̃/‖K⁻¹x̃‖ for x̃ ~ vMF(Kμ/κ̃, κ̃), it
    integrates to one and it is the vMF with concentration c if every κ_m = c. With `normalizer="paper"`,
    log D = Σ log κ_m − log κ̃ as printed by Kirchhof et al. (2022): a measure, not a probability, so it has no samples.

    Args:
        loc: μ, unit vectors of shape (..., M), M ≥ 2.
        concentration: κ_m > 0, shape (..., M).
        normalizer: "exact" or "paper".
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {"loc": unit_vector, "concentration": positive_finite_vector}
    support = unit_vector

    def __init__(
        self,
        loc: Tensor,
        concentration: Tensor,
        normalizer: str = "exact",
        validate_args: bool | None = None,
    ):
        check_normalizer(normalizer)
        if loc.ndim < 1 or loc.shape[-1] < 2:
            raise ValueError(f"loc must have shape (..., M) with M of at least 2, got {tuple(loc.shape)}")
        if concentration.ndim < 1 or concentration.shape[-1] != loc.shape[-1]:
            expected, got = loc.shape[-1], tuple(concentration.shape)
            raise ValueError(f"concentration must have one entry per dimension, shape (..., {expected}), got {got}")
        self.loc, self.concentration = torch.broadcast_tensors(loc, concentration)
        self.normalizer = normalizer
        super().__init__(self.loc.shape[:-1], self.loc.shape[-1:], validate_args=validate_args)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        return self.normalizer == "exact"

    def expand(
        self, batch_shape: _Shape, _instance: "NonIsotropicVonMisesFisher | None" = None
    ) -> "NonIsotropicVonMisesFisher":
        new = self._get_checked_instance(NonIsotropicVonMisesFisher, _instance)
        batch_shape = Size(batch_shape)
        new.loc = self.loc.expand(batch_shape + self.event_shape)
        new.concentration = self.concentration.expand(batch_shape + self.event_shape)
        new.normalizer = self.normalizer
        super(NonIsotropicVonMisesFisher, new).__init__(batch_shape, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def mean(self) -> Tensor:
        raise NotImplementedError("the mean of a nivMF has no closed form: average rsample() instead")

    @property
    def mode(self) -> Tensor:
        """The point of highest density: loc for normalizer="paper"; the exact density also weighs 1/‖Kx‖^M.

        In y = Kx/‖Kx‖ the exact log-density is κ̃⟨y, m⟩ + (M/2)·log yᵀK⁻²y, m = Kμ/κ̃, which is climbed from loc by the
        power iteration y ← normalise(gradient + shift·y); the shift makes it convex, so each step goes up.
        """
        if self.normalizer == "paper":
            return self.loc
        dim = self.event_shape[0]
        stretched = self.concentration * self.loc
        inverse_squared = (self.concentration / self.concentration.amin(-1, keepdim=True)) ** -2
        shift = dim * (inverse_squared.amax(-1, keepdim=True) / inverse_squared.amin(-1, keepdim=True))
        point = unit_vectors(stretched)
        for _ in range(_MODE_MAX_STEPS):
            quadratic = (inverse_squared * point * point).sum(-1, keepdim=True)
            uphill = stretched + dim * inverse_squared * point / quadratic + shift * point
            point, previous = unit_vectors(uphill), point
            if (point - previous).abs().max() < torch.finfo(point.dtype).eps:
                break
        return unit_vectors(point / self.concentration)

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        terms = nivmf_terms(at_least_float32(self.loc), at_least_float32(self.concentration).log(), self.normalizer)
        relative = relative_nivmf_log_density(at_least_float32(value), terms, ROWWISE)
        return (relative + log_uniform_density(self.event_shape[0])).to(self.loc.dtype)

    def rsample(self, sample_shape: _Shape = (), antithetic: bool = False) -> Tensor:
        """Exact draws K⁻¹x̃/‖K⁻¹x̃‖, differentiable in loc and concentration."""
        if self.normalizer != "exact":
            raise NotImplementedError(
                'normalizer="paper" does not integrate to one, so it cannot be sampled: use normalizer="exact"'
            )
        stretched = sample_vmf(self.concentration * self.loc, tuple(sample_shape), antithetic=antithetic)
        return unit_vectors(stretched / self.concentration)
