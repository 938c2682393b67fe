"""How many images a model is less certain of when they are made worse."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from .curves import line_with_band
from .style import BLACK, PAGE_WIDTH, new_figure, styled

_COLUMNS = 4  # of panels, and of names in the legend


@styled
def degradation_curves(
    runs: Mapping[str, Sequence[Mapping[str, Sequence[float]]]], strengths: Mapping[str, Sequence[float]]
) -> Figure:
    """A panel a kind of degradation: the share of images whose certainty drops, against the strength.

    runs: by name, a seed each: by kind, the share at every strength. The line is the mean over seeds, the band one
        standard deviation. Half of the images is what chance gives.
    strengths: by kind.
    """
    kinds = list(strengths)
    columns = min(_COLUMNS, len(kinds))
    rows = -(-len(kinds) // columns)
    figure = new_figure(0.5 + 1.9 * rows, PAGE_WIDTH * (0.35 + 0.65 * columns / _COLUMNS))
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for axes in grid.flat[len(kinds) :]:
        axes.set_axis_off()
    for axes, kind in zip(grid.flat, kinds, strict=False):
        axes.axhline(50, color=BLACK, linewidth=0.8, linestyle=(0, (1, 2)))
        for index, (name, seeds) in enumerate(runs.items()):
            shares = np.array([seed[kind] for seed in seeds], dtype=float)
            line_with_band(axes, 100 * np.asarray(strengths[kind]), 100 * shares, name, index)
        axes.set(title=kind, xlabel="strength (%)", ylim=(-3, 103), xlim=(0, 100))
    for axes in grid[:, 0]:
        axes.set_ylabel("less certain (%)")
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(_COLUMNS, len(labels)))
    return figure
