"""The non-isotropic von Mises-Fisher distribution as a torch.distributions.Distribution."""

from typing import ClassVar, TypeAlias

import torch
from torch import Size, Tensor
from torch.distributions import Distribution
from torch.distributions.constraints import Constraint

from ..checks import check_option
from ..functional.nivmf import NORMALIZERS, nivmf_terms, relative_nivmf_log_density
from ..functional.nivmf_mean import nivmf_mean
from ..functional.pairing import ROWWISE, at_least_float32, in_dtype_of, unit_vectors
from ..functional.sampling import sample_vmf
from ..functional.vmf import log_uniform_density
from .constraints import check_directions, positive_finite_vector, unit_vector

_BISECTIONS = 60

_Shape: TypeAlias = Size | list[int] | tuple[int, ...]


class NonIsotropicVonMisesFisher(Distribution):
    r"""von Mises-Fisher distribution with one concentration per dimension, K = diag(κ_1 … κ_M), κ̃ = ‖Kμ‖:

        log ρ(x) = log C_M(κ̃) + log D + κ̃·cos(Kx, Kμ)

    With `normalizer="exact"`, log D = Σ log κ_m − M·log‖Kx‖: ρ is the density of K⁻¹x̃/‖K⁻¹x̃‖ for x̃ ~ vMF(Kμ/κ̃, κ̃).
    It integrates to one, and equals the vMF with concentration c if every κ_m = c. With `normalizer="paper"`,
    log D = Σ log κ_m − log κ̃ as printed by Kirchhof et al. (2022), and with "none" log D = 0: measures that are not
    probabilities and have no samples.

    Args:
        loc: μ, unit vectors of shape (..., M), M ≥ 2.
        concentration: κ_m > 0, shape (..., M).
        normalizer: "exact", "paper" or "none".
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {"loc": unit_vector, "concentration": positive_finite_vector}
    support = unit_vector

    def __init__(
        self, loc: Tensor, concentration: Tensor, normalizer: str = "exact", validate_args: bool | None = None
    ):
        check_option("normalizer", normalizer, NORMALIZERS)
        concentration = torch.as_tensor(concentration, device=loc.device)
        check_directions(loc)
        if concentration.ndim < 1 or concentration.shape[-1] != loc.shape[-1]:
            raise ValueError(f"concentration must be (..., {loc.shape[-1]}), got {tuple(concentration.shape)}")
        dtype = torch.promote_types(loc.dtype, concentration.dtype)
        self.loc, self.concentration = torch.broadcast_tensors(loc.to(dtype), concentration.to(dtype))
        self.normalizer = normalizer
        super().__init__(self.loc.shape[:-1], self.loc.shape[-1:], validate_args=validate_args)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        return self.normalizer == "exact"

    def expand(
        self, batch_shape: _Shape, _instance: "NonIsotropicVonMisesFisher | None" = None
    ) -> "NonIsotropicVonMisesFisher":
        new = self._get_checked_instance(NonIsotropicVonMisesFisher, _instance)
        shape = Size(batch_shape) + self.event_shape
        loc, concentration = self.loc.expand(shape), self.concentration.expand(shape)
        NonIsotropicVonMisesFisher.__init__(new, loc, concentration, self.normalizer, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def mean(self) -> Tensor:
        """E x, inside the unit ball, by quadrature in float64; see functional.nivmf_mean."""
        self._check_probability()
        return nivmf_mean(self.loc, self.concentration)

    @property
    def mode(self) -> Tensor:
        """The point of highest density: loc, except that the exact normalizer has a further factor 1/‖Kx‖^M."""
        if self.normalizer != "exact":
            return self.loc
        return _exact_mode(self.loc.detach(), self.concentration.detach())

    def _check_probability(self) -> None:
        if self.normalizer != "exact":
            reason = "does not integrate to one, so it has no mean and no samples"
            raise NotImplementedError(f'normalizer="{self.normalizer}" {reason}: use "exact"')

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        terms = nivmf_terms(at_least_float32(self.loc), at_least_float32(self.concentration).log(), self.normalizer)
        relative = relative_nivmf_log_density(at_least_float32(value), terms, ROWWISE)
        return (relative + log_uniform_density(self.event_shape[0])).to(self.loc.dtype)

    def rsample(self, sample_shape: _Shape = (), antithetic: bool = False) -> Tensor:
        """Exact draws K⁻¹x̃/‖K⁻¹x̃‖, differentiable in loc and concentration."""
        self._check_probability()
        stretched = sample_vmf(self.concentration * self.loc, tuple(sample_shape), antithetic=antithetic)
        return unit_vectors(stretched / self.concentration)


def _exact_mode(loc: Tensor, concentration: Tensor) -> Tensor:
    """The global maximum of the exact density.

    In y = Kx/‖Kx‖ the log-density is κ̃⟨y, m⟩ + (M/2)·log Σ b_i y_i² with m = Kμ/κ̃ and b = κ^−2. The signs of y are
    those of m, and in u = y² the function Σ κ̃|m_i|√u_i + (M/2)·log Σ b_i u_i is concave: its maximum on the simplex has
    √u_i = κ̃|m_i|/(2(λ − νb_i)) with Σu = 1 and 2ν·Σ b_i u_i = M, found by one bisection inside another.
    """
    stretched = at_least_float32(concentration * loc)
    spread = at_least_float32(concentration / concentration.amin(-1, keepdim=True)) ** -2  # b, scaled to at most 1
    # A component of m that is zero may be non-zero at the maximum; both signs are then equally good.
    pull = stretched.abs().clamp(min=1e-6 * float(torch.finfo(stretched.dtype).eps) ** 0.25)
    dim = loc.shape[-1]
    low, high = torch.full_like(pull[..., :1], dim / 2), dim / 2 / spread.amin(-1, keepdim=True)
    for _ in range(_BISECTIONS):
        nu = (low + high) / 2
        too_large = nu * (spread * _simplex_root(pull, nu * spread) ** 2).sum(-1, keepdim=True) > dim / 2
        low, high = torch.where(too_large, low, nu), torch.where(too_large, nu, high)
    point = _simplex_root(pull, low * spread) * torch.where(stretched < 0, -1.0, 1.0)
    return in_dtype_of(unit_vectors(point / concentration), loc)


def _simplex_root(pull: Tensor, weight: Tensor) -> Tensor:
    """√u with √u_i = pull_i/(2(λ − weight_i)) and Σu = 1: λ − max(weight) lies between max(pull)/2 and √(Σpull²)/2."""
    gap = weight.amax(-1, keepdim=True) - weight  # ≥ 0
    low, high = torch.zeros_like(gap[..., :1]), pull.square().sum(-1, keepdim=True).sqrt() / 2
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        too_small = ((pull / (2 * (middle + gap))) ** 2).sum(-1, keepdim=True) > 1
        low, high = torch.where(too_small, middle, low), torch.where(too_small, high, middle)
    return pull / (2 * (high + gap))
