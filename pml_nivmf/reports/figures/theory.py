r"""The figures that need no run: their numbers, computed, and the figures themselves.

Bounds of the Bessel ratio, with G_{α,β}(t) = t/(α + √(t² + β²)) and ν = M/2 − 1 [Amos 1974; the notation is that of
Hornik & Grün 2013, "Amos-type bounds for modified Bessel function ratios"]:

    G_{ν+1/2, ν+3/2}(t)  ≤  A_M(t) = I_{ν+1}(t)/I_ν(t)  ≤  G_{ν, ν+2}(t).

As log C_M(κ) = log C_M(0) − ∫₀^κ A_M and ∫₀^κ G_{α,β} = √(κ²+β²) − β − α·log((α + √(κ²+β²))/(α + β)), each bounds
log C_M. Ruiz-Antolín & Segura (2016) give the same pair, which Kumar & Tsvetkov (2019) train with.
"""

from collections.abc import Callable

import numpy as np
import torch
from matplotlib.figure import Figure

from ...distributions import NonIsotropicVonMisesFisher, VonMisesFisher
from ...functional import log_uniform_density, log_vmf_normalizer
from ...functional.pairing import ROWWISE
from ...functional.ppk import relative_ppk_distance
from .normalizers import NormalizerCurves, normalizer_approximations
from .sphere import LogDensity, Panel, densities_on_sphere
from .surfaces import distance_surfaces

_AHEAD, _ASIDE = (0.0, 0.0, 1.0), (0.48, 0.36, 0.8)  # mean directions
_PROXY_DIM = 128  # of the distances' figure
_NORMS_PER_DIM = 8  # as far as norms are drawn, in dimensions


def draw_densities() -> Figure:
    """vMF of three concentrations; nivMF of three K, with the exact normalizer and with the paper's."""
    shapes = ((_AHEAD, (5.0, 20.0, 20.0)), (_AHEAD, (40.0, 8.0, 20.0)), (_ASIDE, (5.0, 20.0, 20.0)))
    return densities_on_sphere(
        {
            "vMF": [Panel(rf"$\kappa = {kappa:g}$", _vmf(_AHEAD, kappa), _AHEAD) for kappa in (5.0, 20.0, 80.0)],
            "nivMF, exact": [_nivmf_panel(loc, k, "exact") for loc, k in shapes],
            "nivMF, the paper's": [_nivmf_panel(loc, k, "paper") for loc, k in shapes],
        }
    )


def draw_beside() -> Figure:
    """A vMF, and nivMFs that are narrow or wide along the first axis, or lie off the axes."""
    return densities_on_sphere(
        {
            "": [
                Panel("vMF, " + r"$\kappa = 20$", _vmf(_AHEAD, 20.0), _AHEAD),
                *(
                    Panel("nivMF, " + _diagonal(k), _nivmf(loc, k, "exact"), loc)
                    for loc, k in (
                        (_AHEAD, (60.0, 20.0, 20.0)),
                        (_AHEAD, (10.0, 20.0, 20.0)),
                        (_ASIDE, (10.0, 40.0, 20.0)),
                    )
                ),
            ]
        }
    )


def draw_distances() -> Figure:
    """Cos, L2 and B-vMF of an embedding to a proxy, in 128 dimensions."""
    proxy_norm = 4.0 * _PROXY_DIM
    angle = np.linspace(0, 180, 91)
    norm = np.linspace(0, _NORMS_PER_DIM * _PROXY_DIM, 97)
    cosine = np.cos(np.radians(angle))[None, :]
    distances = {
        r"Cos: $-\cos(\mu_p, \mu_z)$": np.broadcast_to(-cosine, (len(norm), len(angle))),
        r"L2: $\Vert \nu_p - \nu_z\Vert^2$": norm[:, None] ** 2
        + proxy_norm**2
        - 2 * proxy_norm * norm[:, None] * cosine,
        rf"B-vMF, $M = {_PROXY_DIM}$ (nats)": bhattacharyya(angle, norm, proxy_norm, _PROXY_DIM),
    }
    return distance_surfaces(angle, norm, distances, proxy_norm)


def draw_normalizers() -> Figure:
    """M = 128 and 512, the two dimensions for which the paper has a fit."""
    return normalizer_approximations([normalizer_curves(dim, np.linspace(0, 4 * dim, 201)) for dim in (128, 512)])


NEEDING_NO_RUN: dict[str, Callable[[], Figure]] = {
    "densities_on_sphere": draw_densities,
    "vmf_beside_nivmf": draw_beside,
    "distance_surfaces": draw_distances,
    "normalizer_approximations": draw_normalizers,
}


def bhattacharyya(angle: np.ndarray, norm: np.ndarray, proxy_norm: float, dim: int) -> np.ndarray:
    """The PPK distance of order ½ of an embedding at `angle` degrees with `norm` to a proxy, (norms, angles)."""
    turn = torch.from_numpy(np.radians(angle))
    query = torch.zeros(len(norm), len(angle), dim, dtype=torch.double)
    query[..., 0] = torch.from_numpy(norm)[:, None] * turn.cos()
    query[..., 1] = torch.from_numpy(norm)[:, None] * turn.sin()
    proxy = torch.zeros(dim, dtype=torch.double)
    proxy[0] = proxy_norm
    return relative_ppk_distance(query, proxy.expand_as(query), 0.5, ROWWISE).numpy()


def normalizer_curves(dim: int, concentration: np.ndarray) -> NormalizerCurves:
    kappa = torch.from_numpy(concentration)
    order = dim / 2 - 1
    others = {
        "the paper's fit": log_vmf_normalizer(kappa, dim, method="paper").numpy(),
        "upper bound (Amos 1974)": log_uniform_density(dim)
        - ratio_bound_integral(concentration, order + 0.5, order + 1.5),
        "lower bound (Amos 1974)": log_uniform_density(dim) - ratio_bound_integral(concentration, order, order + 2),
    }
    return NormalizerCurves(dim, concentration, log_vmf_normalizer(kappa, dim).numpy(), others)


def ratio_bound(concentration: np.ndarray, alpha: float, beta: float) -> np.ndarray:
    """G_{α,β}(κ)."""
    return concentration / (alpha + np.sqrt(concentration**2 + beta**2))


def ratio_bound_integral(concentration: np.ndarray, alpha: float, beta: float) -> np.ndarray:
    """∫₀^κ G_{α,β}."""
    root = np.sqrt(concentration**2 + beta**2)
    return root - beta - alpha * np.log((alpha + root) / (alpha + beta))


def _vmf(loc: tuple[float, ...], concentration: float) -> LogDensity:
    distribution = VonMisesFisher(torch.tensor(loc, dtype=torch.double), concentration, validate_args=False)
    return lambda points: distribution.log_prob(torch.from_numpy(points)).numpy()


def _nivmf(loc: tuple[float, ...], concentration: tuple[float, ...], normalizer: str) -> LogDensity:
    loc_, concentration_ = (torch.tensor(values, dtype=torch.double) for values in (loc, concentration))
    distribution = NonIsotropicVonMisesFisher(loc_, concentration_, normalizer, validate_args=False)
    return lambda points: distribution.log_prob(torch.from_numpy(points)).numpy()


def _nivmf_panel(loc: tuple[float, ...], concentration: tuple[float, ...], normalizer: str) -> Panel:
    density = _nivmf(loc, concentration, normalizer)
    place = r"$\mu = x_3$" if loc == _AHEAD else r"$\mu$ off the axes"
    title = f"$K = ${_diagonal(concentration)}\n{place}, total mass {total_mass(density):.3g}"
    return Panel(title, density, loc)


def _diagonal(concentration: tuple[float, ...]) -> str:
    return rf"$\mathrm{{diag}}({', '.join(f'{kappa:g}' for kappa in concentration)})$"


def total_mass(log_density: LogDensity) -> float:
    """∫ over S², by Gauss-Legendre in height and even steps of longitude."""
    height, weight = np.polynomial.legendre.leggauss(256)
    turn = np.linspace(0, 2 * np.pi, 512, endpoint=False)
    level = np.sqrt(1 - height**2)[:, None]
    z = np.broadcast_to(height[:, None], (len(height), len(turn)))
    points = np.stack([level * np.cos(turn), level * np.sin(turn), z], axis=-1)
    density = np.exp(log_density(points.reshape(-1, 3))).reshape(z.shape)
    return float((weight * density.mean(axis=1)).sum() * 2 * np.pi)
