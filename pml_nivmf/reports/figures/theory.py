"""The figures that need no run: densities on the sphere, distances to a proxy, the normalizer's approximations.

Values are the paper's where it draws the same: κ = 20 and K = diag(20, 5, 50), and a proxy with κ_p = 10.
"""

from collections.abc import Callable

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from ...distributions import NonIsotropicVonMisesFisher, VonMisesFisher
from ...functional import log_vmf_normalizer
from ...functional.pairing import ROWWISE
from ...functional.ppk import relative_ppk_distance
from .sphere import Panel, densities_on_sphere
from .style import BLACK, MAP, new_figure, series_style, styled

_AHEAD, _ASIDE = (0.0, 0.0, 1.0), (0.48, 0.36, 0.8)  # mean directions
Triple = tuple[float, float, float]
_K: Triple = (20, 5, 50)


def draw_densities() -> Figure:
    """vMF with three concentrations; nivMF with three K, with the exact and with the paper's normalizer."""
    shapes = ((_AHEAD, _K), (_ASIDE, _K), (_ASIDE, (5, 20, 20)))
    rows = {"vMF": [Panel(rf"$\kappa = {kappa:g}$", _vmf(kappa)) for kappa in (5.0, 20.0, 80.0)]}
    for normalizer, name in (("exact", "nivMF, exact"), ("paper", "nivMF, the paper's")):
        rows[name] = []
        for loc, concentration in shapes:
            density = nivmf(loc, concentration, normalizer)
            place = r"$\mu = x_3$" if loc == _AHEAD else r"$\mu$ off the axes"
            title = f"$K = ${_diagonal(concentration)}\n{place}, total mass {total_mass(density):,.4g}"
            rows[name].append(Panel(title, density))
    return densities_on_sphere(rows)


def draw_vmf_beside_nivmf() -> Figure:
    """A vMF, and nivMFs that are narrow or wide along the first axis, or lie off the axes."""
    shapes = ((_AHEAD, (60, 20, 20)), (_AHEAD, (10, 20, 20)), (_ASIDE, (10, 40, 20)))
    panels = [Panel(f"nivMF, {_diagonal(concentration)}", nivmf(loc, concentration)) for loc, concentration in shapes]
    return densities_on_sphere({"": [Panel(r"vMF, $\kappa = 20$", _vmf(20.0)), *panels]})


def nivmf(loc: Triple, concentration: Triple, normalizer: str = "exact") -> NonIsotropicVonMisesFisher:
    mean, scale = torch.tensor((loc, concentration), dtype=torch.double)
    return NonIsotropicVonMisesFisher(mean, scale, normalizer, validate_args=False)


def total_mass(distribution: NonIsotropicVonMisesFisher) -> float:
    """∫ over S², by Gauss-Legendre in height and even steps of longitude."""
    height, weight = np.polynomial.legendre.leggauss(256)
    z, turn = np.meshgrid(height, np.linspace(0, 2 * np.pi, 512, endpoint=False), indexing="ij")
    radius = np.sqrt(1 - z**2)
    points = torch.from_numpy(np.stack([radius * np.cos(turn), radius * np.sin(turn), z], axis=-1))
    return float(weight @ distribution.log_prob(points).exp().mean(dim=1).numpy() * 2 * np.pi)


def _vmf(concentration: float) -> VonMisesFisher:
    return VonMisesFisher(torch.tensor(_AHEAD, dtype=torch.double), concentration, validate_args=False)


def _diagonal(concentration: Triple) -> str:
    return rf"$\mathrm{{diag}}({', '.join(f'{kappa:g}' for kappa in concentration)})$"


@styled
def draw_distances(dim: int = 128, proxy_norm: float = 10.0) -> Figure:
    """Cos, L2 and B-vMF distance to a proxy over angle and norm of an embedding."""
    angle, norm = np.linspace(0, 180, 91), np.linspace(0, 2 * proxy_norm, 97)
    cosine, length = np.cos(np.radians(angle))[None, :], norm[:, None]
    distances = {
        r"Cos: $-\cos(\mu_p, \mu_z)$": -cosine + 0 * length,
        r"L2: $\Vert \nu_p - \nu_z\Vert^2$": length**2 + proxy_norm**2 - 2 * proxy_norm * length * cosine,
        rf"B-vMF, $M = {dim}$ (nats)": bhattacharyya(angle, norm, proxy_norm, dim),
    }
    figure = new_figure(2.75)
    panels = figure.subplots(1, len(distances), sharey=True)
    for axes, (name, values) in zip(panels, distances.items(), strict=True):
        mesh = axes.pcolormesh(angle, norm, values, cmap=MAP, shading="gouraud", rasterized=True)
        lines = axes.contour(angle, norm, values, levels=9, colors="white", linewidths=0.7, linestyles="solid")
        axes.clabel(lines, lines.levels[2::2], fmt="%.4g", fontsize=6.5)
        axes.axhline(proxy_norm, color="white", linestyle=":", linewidth=1.2)
        axes.set(title=name, xlabel="angle to the proxy (degrees)", xticks=np.arange(0, 181, 45))
        axes.grid(False)
        ticks = ScalarFormatter(useMathText=True)
        figure.colorbar(mesh, ax=axes, location="bottom", aspect=18, pad=0.02, label="distance", format=ticks)
    panels[0].set_ylabel("norm of the embedding")
    place = ("axes fraction", "data")
    panels[-1].annotate("norm\nof the\nproxy", (1.03, proxy_norm), xycoords=place, va="center", fontsize=7.5)
    return figure


def bhattacharyya(angle: np.ndarray, norm: np.ndarray, proxy_norm: float, dim: int) -> np.ndarray:
    """The distance to a proxy from embeddings at `angle` degrees with `norm`, (norms, angles)."""
    turn, axes = np.radians(angle), torch.eye(2, dim, dtype=torch.double)
    query = torch.from_numpy(norm[:, None, None] * np.stack([np.cos(turn), np.sin(turn)], axis=-1)) @ axes
    return relative_ppk_distance(query, proxy_norm * axes[0], 0.5, ROWWISE).numpy()


@styled
def draw_normalizers() -> Figure:
    """log C_M(κ) and approximations of it, above, and their errors, below, for M = 128 and 512."""
    figure = new_figure(4.6)
    grid = figure.subplots(2, 2, sharex="col")
    for (above, below), dim in zip(grid.T, (128, 512), strict=True):  # the dimensions for which the paper has a fit
        concentration = torch.linspace(0, 4 * dim, 201, dtype=torch.double)
        exact, fit = (log_vmf_normalizer(concentration, dim, method) for method in ("exact", "paper"))
        above.plot(concentration, exact, color=BLACK, label="ours, exact")
        approximations = {"the paper's fit": fit, "Kumar and Tsvetkov": exact[0] + kumar_tsvetkov(concentration, dim)}
        approximations["Scott et al."] = exact[0] + scott(concentration, dim)
        for number, (name, values) in enumerate(approximations.items(), start=1):
            above.plot(concentration, values, label=name, **series_style(number))
            below.plot(concentration, (values - exact).abs(), **series_style(number))
        above.set(title=f"$M = {dim}$", xmargin=0)
        below.set(yscale="log", ylim=(1e-5, None), xlabel=r"concentration $\kappa$")
    grid[0, 0].set_ylabel(r"$\log C_M(\kappa)$ (nats)")
    grid[1, 0].set_ylabel("error (nats)")
    grid[0, 0].legend()
    return figure


def kumar_tsvetkov(concentration: torch.Tensor, dim: int) -> torch.Tensor:
    """log C_M(κ) − log C_M(0) from the bound A_M(κ) ≤ κ/(v − 1 + √((v+1)² + κ²)), v = M/2 [Kumar, Tsvetkov 2019]."""
    return _integrated_bound(concentration, dim / 2 - 1, dim / 2 + 1)


def scott(concentration: torch.Tensor, dim: int) -> torch.Tensor:
    """log C_M(κ) − log C_M(0) from the mean of two bounds of A_M [Scott, Gallagher, Mozer 2021], those of Ruiz-Antolín
    and Segura: A_M ≥ κ/(a + √((a+1)² + κ²)) and A_M ≤ κ/(a + √(a² + κ²)), a = (M−1)/2."""
    half = (dim - 1) / 2
    return (_integrated_bound(concentration, half, half + 1) + _integrated_bound(concentration, half, half)) / 2


def _integrated_bound(concentration: torch.Tensor, a: float, b: float) -> torch.Tensor:
    """−∫₀^κ x/(a + √(b² + x²)) dx = a·log((a + s)/(a + b)) − (s − b), s = √(b² + κ²)."""
    s = torch.sqrt(b**2 + concentration**2)
    return a * torch.log((a + s) / (a + b)) - (s - b)


NEEDING_NO_RUN: dict[str, Callable[[], Figure]] = {
    "densities_on_sphere": draw_densities,
    "vmf_beside_nivmf": draw_vmf_beside_nivmf,
    "distance_surfaces": draw_distances,
    "normalizer_approximations": draw_normalizers,
}
