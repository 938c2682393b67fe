"""The figures that need no run: densities on the sphere, distances to a proxy, the normalizer's approximations.

Values are the paper's where it draws the same: κ = 20 and K = diag(20, 5, 50), and a proxy with κ_p = 10.
"""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Circle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import ScalarFormatter

from ...distributions import NonIsotropicVonMisesFisher, VonMisesFisher
from ...functional import log_vmf_normalizer
from ...functional.pairing import ROWWISE
from ...functional.vmf import relative_ppk_distance
from .style import BLACK, MAP, PAGE_WIDTH, new_figure, series_style, styled

_AHEAD, _ASIDE = (0.0, 0.0, 1.0), (0.48, 0.36, 0.8)  # mean directions
Triple = tuple[float, float, float]
_K: Triple = (20, 5, 50)
_PIXELS = 320  # width and height of a sphere
_TOWARDS = np.array([0.30, -0.24, 0.92])  # from the centre to the viewer: the third axis points almost at the viewer
Density = VonMisesFisher | NonIsotropicVonMisesFisher


@styled
def densities_on_sphere(rows: Mapping[str, Mapping[str, Density]]) -> Figure:
    """One sphere for each distribution, coloured by its density relative to the maximum.

    rows: for each row, distributions of three dimensions in double precision by their titles.
    Lines of latitude and longitude about the third axis are 30° apart; a dot marks the mean direction.
    """
    columns = max(len(spheres) for spheres in rows.values())
    figure = new_figure(0.5 + PAGE_WIDTH / columns * 1.12 * len(rows))
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for axes_of_row, (name, spheres) in zip(grid, rows.items(), strict=True):
        for axes in axes_of_row:
            axes.set_axis_off()
        for axes, (title, distribution) in zip(axes_of_row, spheres.items(), strict=False):
            image = _draw_sphere(axes, distribution)
            axes.set_title(title)
        place = {"x": -0.04, "y": 0.5, "ha": "right", "va": "center", "transform": axes_of_row[0].transAxes}
        axes_of_row[0].text(s=name, rotation=90, weight="bold", **place)
    bar = figure.colorbar(image, ax=grid, location="bottom", shrink=0.5, aspect=34, pad=0.02)
    bar.set_label("density, relative to its maximum")
    return figure


def _draw_sphere(axes: Axes, distribution: Density) -> AxesImage:
    view = _view()
    side = np.linspace(-1, 1, _PIXELS)
    across, up = np.meshgrid(side, side)
    depth = np.sqrt(np.clip(1 - across**2 - up**2, 0, None))
    points = np.stack([across, up, depth], axis=-1) @ view
    log_density = distribution.log_prob(torch.from_numpy(points)).numpy()
    density = np.exp(log_density - log_density[across**2 + up**2 <= 1].max())
    image = axes.imshow(density, extent=(-1, 1, -1, 1), origin="lower", cmap=MAP, vmin=0, vmax=1)
    rim = Circle((0, 0), 1.0, facecolor="none", edgecolor="#444444", linewidth=0.8)
    axes.add_patch(rim)
    image.set_clip_path(rim)
    _draw_graticule(axes, view)
    _draw_coordinate_axes(axes, view)
    x, y, _ = view @ distribution.loc.numpy()
    axes.plot(x, y, "o", color="black", markersize=3.2, markeredgecolor="white", markeredgewidth=0.7)
    axes.set(xlim=(-1.03, 1.03), ylim=(-1.03, 1.03), aspect="equal")
    return image


def _view() -> np.ndarray:
    """Rows: the directions right, up and towards the viewer; `view @ point` projects."""
    towards = _TOWARDS / np.linalg.norm(_TOWARDS)
    right = np.cross([0.0, 1.0, 0.0], towards)
    right /= np.linalg.norm(right)
    return np.stack([right, np.cross(towards, right), towards])


def _draw_graticule(axes: Axes, view: np.ndarray) -> None:
    turn = np.linspace(0, 2 * np.pi, 361)
    cosine, sine = np.cos(turn), np.sin(turn)
    latitudes = [(cosine * np.cos(a), sine * np.cos(a), 0 * turn + np.sin(a)) for a in np.radians(range(-60, 61, 30))]
    longitudes = [(sine * np.cos(a), sine * np.sin(a), cosine) for a in np.radians(range(0, 180, 30))]
    for circle in latitudes + longitudes:
        x, y, depth = view @ np.stack(circle)
        x[depth < 0] = np.nan
        axes.plot(x, y, color="white", alpha=0.35, linewidth=0.5)


def _draw_coordinate_axes(axes: Axes, view: np.ndarray) -> None:
    """Mark the visible end of each coordinate axis and write its name beside it, towards the centre."""
    outline = withStroke(linewidth=1.4, foreground="#333333")  # white letters on yellow
    for number, direction in enumerate(np.eye(3), start=1):
        x, y, depth = view @ direction
        sign, name = (1, f"$x_{number}$") if depth >= 0 else (-1, f"$-x_{number}$")
        axes.plot(sign * x, sign * y, "+", color="white", markersize=5, markeredgewidth=0.9)
        place = (0.9 * sign * x, 0.9 * sign * y + 0.15)
        axes.text(*place, name, ha="center", va="center", color="white", fontsize=7, path_effects=[outline])


def draw_densities() -> Figure:
    """vMF with three concentrations; nivMF with three K, with the exact and with the paper's normalizer [Fig. 2]."""
    shapes = ((_AHEAD, _K), (_ASIDE, _K), (_ASIDE, (5, 20, 20)))
    rows: dict[str, dict[str, Density]] = {}
    rows["vMF"] = {rf"$\kappa = {kappa:g}$": _vmf(kappa) for kappa in (5.0, 20.0, 80.0)}
    for normalizer, name in (("exact", "nivMF, exact"), ("paper", "nivMF, the paper's")):
        rows[name] = {}
        for loc, concentration in shapes:
            density = nivmf(loc, concentration, normalizer)
            place = r"$\mu = x_3$" if loc == _AHEAD else r"$\mu$ off the axes"
            title = f"$K = ${_diagonal(concentration)}\n{place}, total mass {total_mass(density):,.4g}"
            rows[name][title] = density
    return densities_on_sphere(rows)


def draw_vmf_beside_nivmf() -> Figure:
    """A vMF, and nivMFs that are narrow or wide along the first axis, or lie off the axes."""
    shapes = ((_AHEAD, (60, 20, 20)), (_AHEAD, (10, 20, 20)), (_ASIDE, (10, 40, 20)))
    spheres = {f"nivMF, {_diagonal(concentration)}": nivmf(loc, concentration) for loc, concentration in shapes}
    return densities_on_sphere({"": {r"vMF, $\kappa = 20$": _vmf(20.0), **spheres}})


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
    """Cos, L2 and B-vMF distance to a proxy over angle and norm of an embedding [Fig. 4]."""
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
    """log C_M(κ) and approximations of it, above, and their errors, below, for M = 128 and 512 [Fig. 8]."""
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
