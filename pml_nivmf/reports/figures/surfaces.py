"""Distances over angle and norm of an embedding (the paper's Fig. 4)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from .style import MAP, PAGE_WIDTH, new_figure, styled


@styled
def distance_surfaces(
    angle: np.ndarray, norm: np.ndarray, distances: Mapping[str, np.ndarray], proxy_norm: float
) -> Figure:
    """One panel a distance, with lines of equal distance.

    angle: between embedding and proxy, in degrees, (angles,).
    norm: of the embedding, (norms,).
    distances: by name, (norms, angles).
    proxy_norm: of the proxy, marked on the norm axis.
    """
    figure = new_figure(2.75, PAGE_WIDTH)
    panels = figure.subplots(1, len(distances), sharey=True, squeeze=False)[0]
    for axes, (name, values) in zip(panels, distances.items(), strict=True):
        mesh = axes.pcolormesh(angle, norm, values, cmap=MAP, shading="gouraud", rasterized=True)
        lines = axes.contour(angle, norm, values, levels=9, colors="white", linewidths=0.7, linestyles="solid")
        axes.clabel(lines, lines.levels[1::2], fmt=_short, fontsize=6.5)
        axes.axhline(proxy_norm, color="white", linestyle=":", linewidth=1.2)
        axes.set_title(name)
        axes.set(xlabel="angle to the proxy (degrees)", xticks=np.arange(0, angle.max() + 1, 45))
        axes.grid(False)
        ticks = ScalarFormatter(useMathText=True)
        figure.colorbar(mesh, ax=axes, location="bottom", aspect=18, pad=0.02, label="distance", format=ticks)
    panels[0].set_ylabel("norm of the embedding")
    place: Any = ("axes fraction", "data")
    panels[-1].annotate("norm\nof the\nproxy", (1.03, proxy_norm), xycoords=place, va="center", fontsize=7.5)
    return figure


def _short(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1e5 else f"{value:.1e}".replace("e+0", "e")
