r"""The von Mises-Fisher distribution's normalizer and moments for any dimension M, and distances between two of them.

log C_M(κ) = (M/2−1)·log κ − (M/2)·log 2π − log I_{M/2−1}(κ),       d/dκ log C_M(κ) = −A_M(κ).

Half-precision input is computed in float32 and returned in its own dtype; float32 input uses no float64. Distances
between natural parameters z = κ_z·μ_z and p = κ_p·μ_p are written with ‖z‖², ⟨z, p⟩ and ‖p‖² only, so nothing is
singular at z = 0, and with r(κ) = log C_M(κ) − log C_M(0), because float32 cannot represent differences of log C_M.
"""

import math

import torch
from torch import Tensor

from ..checks import check_option
from .bessel import vmf_normalizer_change, vmf_ratio
from .pairing import Pairing, at_least_float32, in_dtype_of, squared_norm, unit_vectors

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


def relative_ppk_distance(
    query: Tensor, reference: Tensor, gamma: float, pairing: Pairing, whole: bool = True, method: str = "exact"
) -> Tensor:
    r"""−log of the probability product kernel ∫ ζ_z^γ ζ_p^γ over the sphere, without (1 − 2γ)·log C_M(0):

    −γ·(r(κ_z) + r(κ_p)) + r(γ·‖z + p‖).

    r(γ‖z+p‖) is computed as r(γκ_z) plus a change, because both are large and their difference matters.
    `whole=False` leaves out r(γκ_z) − γ·r(κ_z), which is the same for every reference. `method` is that of log C_M.
    """
    dim = query.shape[-1]
    query_squared = squared_norm(query)
    reference_squared = squared_norm(reference)
    base = pairing.per_query(gamma**2 * query_squared)
    delta = gamma**2 * (2 * pairing.product(query, reference) + reference_squared)
    change = normalizer_change(base, delta, dim, method)
    distance = change - gamma * relative_log_normalizer_of_square(reference_squared, dim, method)
    if not whole:
        return distance
    per_query = relative_log_normalizer_of_square(gamma**2 * query_squared, dim, method)
    per_query = per_query - gamma * relative_log_normalizer_of_square(query_squared, dim, method)
    return distance + pairing.per_query(per_query)


def kl_distance(
    query: Tensor, reference: Tensor, form: str, pairing: Pairing, whole: bool = True, method: str = "exact"
) -> Tensor:
    """KL(vMF(z) ‖ vMF(p)) = log C(κ_z) − log C(κ_p) + A_M(κ_z)·(κ_z − κ_p·cos), `form="exact"`;

    `form="paper"` drops the factor A_M(κ_z), as the paper prints it. A_M(κ_z)·κ_p·cos = (A_M(κ_z)/κ_z)·⟨z, p⟩.
    `whole=False` leaves out what is the same for every reference, log C(κ_z) + A_M(κ_z)·κ_z. `method` is that of log C.
    """
    dim = query.shape[-1]
    query_squared = squared_norm(query)
    slope = unit_vectors(query)
    if form == "exact":  # A_M(κ_z)·μ_z, regular at z = 0
        slope = second_moment_terms(query_squared, dim)[0].unsqueeze(-1) * query
    of_reference = relative_log_normalizer_of_square(squared_norm(reference), dim, method)
    distance = -of_reference - pairing.product(slope, reference)
    if not whole:
        return distance
    of_query = relative_log_normalizer_of_square(query_squared, dim, method)
    return distance + pairing.per_query(of_query + (slope * query).sum(-1))


def _order(dim: int) -> float:
    if dim < 2:
        raise ValueError(f"dim must be at least 2, got {dim}")
    return dim / 2 - 1
