"""Densities on the sphere S², seen from outside."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Circle
from matplotlib.patheffects import withStroke

from ...distributions import NonIsotropicVonMisesFisher, VonMisesFisher
from .style import MAP, PAGE_WIDTH, new_figure, styled

_PIXELS = 320  # width and height of a sphere
_TOWARDS = np.array([0.30, -0.24, 0.92])  # from the centre to the viewer: the third axis points almost at the viewer


class Panel(NamedTuple):
    """A sphere with a distribution of three dimensions in double precision."""

    title: str
    distribution: VonMisesFisher | NonIsotropicVonMisesFisher


@styled
def densities_on_sphere(rows: Mapping[str, Sequence[Panel]]) -> Figure:
    """One sphere for each panel, coloured by its density relative to the maximum.

    Lines of latitude and longitude about the third axis are 30° apart; a dot marks the mean direction.
    """
    columns = max(len(panels) for panels in rows.values())
    figure = new_figure(0.5 + PAGE_WIDTH / columns * 1.12 * len(rows))
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for axes_of_row, (name, panels) in zip(grid, rows.items(), strict=True):
        for axes in axes_of_row:
            axes.set_axis_off()
        for axes, panel in zip(axes_of_row, panels, strict=False):
            image = _draw_sphere(axes, panel)
        place = {"x": -0.04, "y": 0.5, "ha": "right", "va": "center", "transform": axes_of_row[0].transAxes}
        axes_of_row[0].text(s=name, rotation=90, weight="bold", **place)
    bar = figure.colorbar(image, ax=grid, location="bottom", shrink=0.5, aspect=34, pad=0.02)
    bar.set_label("density, relative to its maximum")
    return figure


def _draw_sphere(axes: Axes, panel: Panel) -> AxesImage:
    view = _view()
    side = np.linspace(-1, 1, _PIXELS)
    across, up = np.meshgrid(side, side)
    depth = np.sqrt(np.clip(1 - across**2 - up**2, 0, None))
    points = np.stack([across, up, depth], axis=-1) @ view
    log_density = panel.distribution.log_prob(torch.from_numpy(points)).numpy()
    density = np.exp(log_density - log_density[across**2 + up**2 <= 1].max())
    image = axes.imshow(density, extent=(-1, 1, -1, 1), origin="lower", cmap=MAP, vmin=0, vmax=1)
    rim = Circle((0, 0), 1.0, facecolor="none", edgecolor="#444444", linewidth=0.8)
    axes.add_patch(rim)
    image.set_clip_path(rim)
    _draw_graticule(axes, view)
    _draw_coordinate_axes(axes, view)
    x, y, _ = view @ panel.distribution.loc.numpy()
    axes.plot(x, y, "o", color="black", markersize=3.2, markeredgecolor="white", markeredgewidth=0.7)
    axes.set(title=panel.title, xlim=(-1.03, 1.03), ylim=(-1.03, 1.03), aspect="equal")
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
