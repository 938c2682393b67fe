r"""The von Mises-Fisher distribution's normalizer, mean resultant length and second moment, for any dimension M.

log C_M(κ) = (M/2−1)·log κ − (M/2)·log 2π − log I_{M/2−1}(κ),       d/dκ log C_M(κ) = −A_M(κ).

Half-precision input is computed in float32 and returned in its own dtype; float32 input uses no float64.
"""

import math

import torch
from torch import Tensor

from ..checks import check_option
from .bessel import vmf_normalizer_change, vmf_ratio
from .pairing import at_least_float32, in_dtype_of

# The quadratic fits printed in the paper: constant, linear and quadratic coefficient.
_PAPER_FITS = {128: (127.0, -0.01909, -0.003355), 512: (868.0, -0.0002662, -0.0009685)}


def log_vmf_normalizer(concentration: Tensor, dim: int, method: str = "exact") -> Tensor:
    """log C_M(κ) with M = `dim`.

    Args:
        concentration: κ ≥ 0, any shape.
        dim: M, the dimension of the space the sphere lies in.
        method: "exact", or "paper": the quadratic fits of Kirchhof et al. (2022), which exist for M = 128 and 512.
    """
    if check_option("method", method, ("exact", "paper")) == "exact":
        return relative_log_normalizer(concentration, dim) + log_uniform_density(dim)
    if dim not in _PAPER_FITS:
        raise ValueError(f'method="paper" exists for dim 128 and 512 only, got {dim}: use method="exact"')
    constant, linear, quadratic = _PAPER_FITS[dim]
    return constant + concentration * (linear + quadratic * concentration)


def log_uniform_density(dim: int) -> float:
    """log C_M(0) = log Γ(M/2) − log 2 − (M/2)·log π: the log-density of the uniform distribution on the sphere."""
    _order(dim)
    return math.lgamma(dim / 2) - math.log(2) - dim / 2 * math.log(math.pi)


def relative_log_normalizer(concentration: Tensor, dim: int) -> Tensor:
    """r(κ) = log C_M(κ) − log C_M(0) ≤ 0, which the losses use because float32 represents it to rounding."""
    working = at_least_float32(concentration)
    squarable = _squarable(working)
    value = relative_log_normalizer_of_square(squarable * squarable, dim)
    return in_dtype_of(value - (working - squarable), concentration)  # for larger κ, r falls like −κ to rounding


def mean_resultant_length(concentration: Tensor, dim: int) -> Tensor:
    """A_M(κ) = I_{M/2}(κ) / I_{M/2−1}(κ), the length of the mean vector and the mean cosine of a sample, in [0, 1)."""
    squarable = _squarable(at_least_float32(concentration))  # A is 1 to rounding at larger κ
    return in_dtype_of(squarable * vmf_ratio(squarable * squarable, _order(dim)), concentration)


def _squarable(concentration: Tensor) -> Tensor:
    """κ, or less where its square would be close to overflow."""
    return concentration.clamp(max=math.sqrt(torch.finfo(concentration.dtype).max) / 1024)


def relative_log_normalizer_of_square(squared: Tensor, dim: int, method: str = "exact") -> Tensor:
    """r(κ) from κ²: smooth at κ = 0, so a squared norm ‖z‖² can be passed without a square root.

    `method="paper"` is the fit of `log_vmf_normalizer` minus log C_M(0).
    """
    if method == "exact":
        return vmf_normalizer_change(None, squared, _order(dim))
    norm = (squared.relu() + torch.finfo(squared.dtype).tiny ** 0.5).sqrt()  # with a finite slope at zero
    return log_vmf_normalizer(norm, dim, method) - log_uniform_density(dim)


def normalizer_change(squared: Tensor, delta: Tensor, dim: int, method: str = "exact") -> Tensor:
    """log C_M(√(κ² + δ)) − log C_M(κ), with κ² = `squared`, without cancellation for large κ. They broadcast."""
    if method == "exact":
        return vmf_normalizer_change(squared, delta, _order(dim))
    end, start = (relative_log_normalizer_of_square(value, dim, method) for value in (squared + delta, squared))
    return end - start


def second_moment_terms(squared: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """(α, β) with E[xxᵀ] = α·(I + β·ννᵀ) for x ~ vMF of natural parameter ν = κμ, `squared` = κ².

    α = A_M(κ)/κ and β = A_{M+2}(κ)/κ. Trace one, M·α + κ²·α·β = 1, is the Bessel recurrence and gives α from β.
    """
    beta = vmf_ratio(squared, _order(dim) + 1)
    return 1 / (dim + squared * beta), beta


def _order(dim: int) -> float:
    if dim < 2:
        raise ValueError(f"dim must be at least 2, got {dim}")
    return dim / 2 - 1
