"""Densities on the sphere S², seen from outside (the paper's Fig. 2)."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from matplotlib.patheffects import withStroke

from .style import MAP, PAGE_WIDTH, new_figure, styled

_PIXELS = 320  # a side
_TOWARDS = np.array([0.30, -0.24, 0.92])  # where the viewer stands, so that the third axis points almost at him
_OUTLINE = withStroke(linewidth=1.4, foreground="#333333")  # white letters may stand on yellow
LogDensity = Callable[[np.ndarray], np.ndarray]


class Panel(NamedTuple):
    """log_density: of points (n, 3) of unit length, (n,). loc: the mean direction, (3,)."""

    title: str
    log_density: LogDensity
    loc: Sequence[float]


@styled
def densities_on_sphere(rows: Mapping[str, Sequence[Panel]]) -> Figure:
    """One sphere a panel, coloured by its density relative to its highest; rows by name.

    Lines of latitude and longitude are 30° apart, about the third axis; a dot marks the mean direction.
    """
    columns = max(len(panels) for panels in rows.values())
    figure = new_figure(0.5 + PAGE_WIDTH / columns * 1.12 * len(rows))
    grid = figure.subplots(len(rows), columns, squeeze=False)
    image = None
    for axes_of_row, (name, panels) in zip(grid, rows.items(), strict=True):
        for axes in axes_of_row:
            axes.set_axis_off()
        for axes, panel in zip(axes_of_row, panels, strict=False):
            image = _draw_sphere(axes, panel)
        axes_of_row[0].text(
            -0.04, 0.5, name, rotation=90, ha="right", va="center", transform=axes_of_row[0].transAxes, weight="bold"
        )
    bar = figure.colorbar(image, ax=grid, location="bottom", shrink=0.5, aspect=34, pad=0.02)  # type: ignore[arg-type]
    bar.set_label("density, relative to its highest value")
    return figure


def _draw_sphere(axes: Axes, panel: Panel):  # type: ignore[no-untyped-def]
    view = _view()
    side = np.linspace(-1, 1, _PIXELS)
    across, up = np.meshgrid(side, side)
    depth = np.sqrt(np.clip(1 - across**2 - up**2, 0, None))
    points = np.stack([across, up, depth], axis=-1) @ view
    log_density = panel.log_density(points.reshape(-1, 3)).reshape(_PIXELS, _PIXELS)
    inside = across**2 + up**2 <= 1
    density = np.exp(log_density - log_density[inside].max())
    image = axes.imshow(density, extent=(-1, 1, -1, 1), origin="lower", cmap=MAP, vmin=0, vmax=1)
    rim = Circle((0, 0), 1.0, facecolor="none", edgecolor="#444444", linewidth=0.8)
    axes.add_patch(rim)
    image.set_clip_path(rim)
    _draw_graticule(axes, view)
    _draw_axes(axes, view)
    x, y, _ = view @ np.asarray(panel.loc, dtype=float)
    axes.plot(x, y, "o", color="black", markersize=3.2, markeredgecolor="white", markeredgewidth=0.7)
    axes.set_title(panel.title)
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
    circles = []
    for height in np.radians([-60, -30, 0, 30, 60]):
        ring = np.stack([np.cos(turn) * np.cos(height), np.sin(turn) * np.cos(height)], axis=1)
        circles.append(np.column_stack([ring, np.full_like(turn, np.sin(height))]))
    for angle in np.radians(np.arange(0, 180, 30)):
        across = np.sin(turn)
        circles.append(np.column_stack([across * np.cos(angle), across * np.sin(angle), np.cos(turn)]))
    for circle in circles:
        x, y, depth = view @ circle.T
        shown = depth >= 0
        axes.plot(np.where(shown, x, np.nan), np.where(shown, y, np.nan), color="white", alpha=0.35, linewidth=0.5)


def _draw_axes(axes: Axes, view: np.ndarray) -> None:
    """Where the coordinate axes leave the visible side, with their names."""
    for number, direction in enumerate(np.eye(3), start=1):
        x, y, depth = view @ direction
        sign = 1 if depth >= 0 else -1
        label = f"$x_{number}$" if sign > 0 else f"$-x_{number}$"
        axes.plot(sign * x, sign * y, "+", color="white", markersize=5, markeredgewidth=0.9)
        inwards = (-4 if sign * x > 0.5 else 4, -4 if sign * y > 0.5 else 4)  # the names stay within the rim
        axes.annotate(
            label,
            (sign * x, sign * y),
            xytext=inwards,
            textcoords="offset points",
            ha="right" if inwards[0] < 0 else "left",
            va="top" if inwards[1] < 0 else "bottom",
            color="white",
            fontsize=7,
            path_effects=[_OUTLINE],
        )
