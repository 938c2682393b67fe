"""Independent ways to the library's numbers: mpmath, quadrature on S², importance sampling."""

import math
from functools import cache

import mpmath
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

mpmath.mp.dps = 60


@cache
def bessel_pair(kappa: float, dim: int):
    """(I_{M/2−1}(κ), I_{M/2}(κ)) with 60 digits."""
    order = mpmath.mpf(dim) / 2 - 1
    kappa = mpmath.mpf(kappa)
    return mpmath.besseli(order, kappa, maxterms=10**8), mpmath.besseli(order + 1, kappa, maxterms=10**8)


def log_normalizer(kappa: float, dim: int):
    """log C_M(κ) from its definition."""
    half = mpmath.mpf(dim) / 2
    if kappa == 0:
        return mpmath.loggamma(half) - mpmath.log(2) - half * mpmath.log(mpmath.pi)
    value = (half - 1) * mpmath.log(kappa) - half * mpmath.log(2 * mpmath.pi)
    return value - mpmath.log(bessel_pair(kappa, dim)[0])


def relative_log_normalizer(kappa: float, dim: int):
    return log_normalizer(kappa, dim) - log_normalizer(0, dim)


def mean_resultant_length(kappa: float, dim: int):
    lower, upper = bessel_pair(kappa, dim)
    return upper / lower


def slope_of_mean_resultant_length(kappa: float, dim: int) -> float:
    """A′ = 1 − A² − (M−1)·A/κ."""
    mean = mean_resultant_length(kappa, dim)
    return float(1 - mean**2 - (dim - 1) * mean / kappa)


def paper_fit(kappa: float, dim: int) -> float:
    """log C_M(κ) as the paper approximates it, for M = 128 and 512."""
    constant, linear, quadratic = {128: (127, -0.01909, -0.003355), 512: (868, -0.0002662, -0.0009685)}[dim]
    return constant + linear * kappa + quadratic * kappa**2


LOG_NORMALIZERS = {"exact": log_normalizer, "paper": paper_fit}


def log_normalizers(kappas: Tensor, dim: int, method: str = "exact") -> Tensor:
    return torch.tensor([float(LOG_NORMALIZERS[method](kappa, dim)) for kappa in kappas.tolist()], dtype=kappas.dtype)


def ppk(z: np.ndarray, p: np.ndarray, gamma: float, method: str = "exact") -> float:
    """The PPK distance from mpmath normalizers."""
    norms = (float(np.linalg.norm(v)) for v in (z, p, gamma * (z + p)))
    of_z, of_p, of_sum = (LOG_NORMALIZERS[method](norm, len(z)) for norm in norms)
    return float(of_sum - gamma * (of_z + of_p))


def kl(z: np.ndarray, p: np.ndarray, form: str = "exact", method: str = "exact") -> float:
    """KL(vMF(z) ‖ vMF(p)) from mpmath normalizers; the paper omits the factor A_M(κ_z)."""
    dim, kappa_z, kappa_p = len(z), float(np.linalg.norm(z)), float(np.linalg.norm(p))
    cosine = float(z @ p) / (kappa_z * kappa_p)
    mean = mean_resultant_length(kappa_z, dim) if form == "exact" else 1
    of_z, of_p = (LOG_NORMALIZERS[method](kappa, dim) for kappa in (kappa_z, kappa_p))
    return float(of_z - of_p + mean * (kappa_z - kappa_p * cosine))


def sphere_rule(nodes: int = 200) -> tuple[torch.Tensor, torch.Tensor]:
    """Points (n, 3) and weights of a product rule on S²: Gauss-Legendre in z, trapezoid in the angle."""
    heights, weights = np.polynomial.legendre.leggauss(nodes)
    angles = 2 * np.pi * np.arange(2 * nodes) / (2 * nodes)
    height, angle = np.meshgrid(heights, angles, indexing="ij")
    radius = np.sqrt(1 - height**2)
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle), height], -1).reshape(-1, 3)
    return torch.tensor(points), torch.tensor(np.repeat(weights, 2 * nodes) * np.pi / nodes)


def check_two_derivatives(function, *inputs: torch.Tensor) -> None:
    """Autograd's first and second derivatives against finite differences, in random directions."""
    assert torch.autograd.gradcheck(function, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, inputs, fast_mode=True)


def unit(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Random unit vectors."""
    vectors = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    return vectors / vectors.norm(dim=-1, keepdim=True)


def uneven(classes: int, dim: int, mean: float, variation: float, seed: int = 2) -> torch.Tensor:
    """(classes, dim) log-normal concentrations with this mean and coefficient of variation."""
    sigma = math.sqrt(math.log1p(variation**2))
    noise = torch.randn(classes, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return mean * torch.exp(sigma * noise - sigma**2 / 2)


def tilted_importance_sampling(
    z: torch.Tensor, loc: torch.Tensor, concentration: torch.Tensor, draws: int, exact: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """(log E_{x~vMF(z)} e^f, its standard error), f = κ̃·cos(Kx, Kμ), for one image z (M,) and proxies (C, M).

    `exact` adds Σ log κ_m − M·log‖Kx‖ to f. The proposal is then x = D^−½x̃/‖D^−½x̃‖ with x̃ from the vMF with natural
    parameter √s·D^−½(z + K²μ/√q), where D is near to K², so that the weights hardly vary; otherwise D = I and s = 1.
    """
    dim, kappa, weight = len(z), float(z.norm()), concentration**2
    mean_length = float(mean_resultant_length(kappa, dim))
    second = 1 - (dim - 1) * mean_length / kappa  # E⟨x, μ_z⟩²
    along = (weight * (z / kappa) ** 2).sum(-1)
    q = second * along + (1 - second) / (dim - 1) * (weight.sum(-1) - along)
    relative = weight / weight.mean(-1, keepdim=True)
    slope = dim * mean_length / kappa if exact else 0.0
    logs, errors = [], []
    for row in range(len(loc)):
        root = (1 + slope * (relative[row] - 1)).sqrt()  # √D
        fall = slope * relative[row].var()
        natural = (1 - slope * fall) ** 0.5 * (z + weight[row] * loc[row] / (q[row] * (1 - fall)).sqrt()) / root
        x = F.normalize(sample_vmf_by_gaussians(natural, draws) / root, dim=-1)
        stretched, mapped = concentration[row] * x, root * x
        target = x @ z + stretched @ (concentration[row] * loc[row]) / stretched.norm(dim=-1)
        if exact:
            target = target + concentration[row].log().sum() - dim * stretched.norm(dim=-1).log()
        proposal = mapped @ natural / mapped.norm(dim=-1) + root.log().sum() - dim * mapped.norm(dim=-1).log()
        exponent = target - proposal
        weights = torch.exp(exponent - exponent.max())
        shift = relative_log_normalizer(kappa, dim) - relative_log_normalizer(float(natural.norm()), dim)
        logs.append(float(shift) + float(exponent.max()) + math.log(weights.mean()))
        errors.append(float(weights.std() / weights.mean()) / math.sqrt(draws))
    return torch.tensor(logs, dtype=z.dtype), torch.tensor(errors, dtype=z.dtype)


def sample_vmf_by_gaussians(natural: torch.Tensor, draws: int) -> torch.Tensor:
    """vMF samples by inverting the cosine's CDF on a fine grid: slow, plain, and nothing like the library's sampler."""
    dim, kappa = len(natural), float(natural.norm())
    loc = natural / kappa
    angle = torch.linspace(0, math.pi, 20_001, dtype=natural.dtype)[1:-1]
    log_density = kappa * torch.cos(angle) + (dim - 2) * torch.log(torch.sin(angle))
    cdf = torch.cumsum(torch.exp(log_density - log_density.max()), 0)
    picked = angle[torch.searchsorted(cdf, torch.rand(draws, dtype=natural.dtype) * cdf[-1]).clamp(max=len(angle) - 1)]
    tangent = torch.randn(draws, dim, dtype=natural.dtype)
    tangent = tangent - (tangent @ loc).unsqueeze(-1) * loc
    tangent = tangent / tangent.norm(dim=-1, keepdim=True)
    return torch.cos(picked).unsqueeze(-1) * loc + torch.sin(picked).unsqueeze(-1) * tangent
