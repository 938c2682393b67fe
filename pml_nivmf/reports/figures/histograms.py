"""Norms of right and of wrong retrievals (the paper's supplement)."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from ...metrics import UndefinedMetricError, certainty_auroc
from .style import PAGE_WIDTH, RIGHT, WRONG, new_figure, styled

_COLUMNS = 3


@styled
def norm_histograms(
    runs: Mapping[str, tuple[np.ndarray, np.ndarray]], bins: int = 40, score: str = "embedding norm ‖z‖"
) -> Figure:
    """A panel a run: how certain right and wrong retrievals are, as densities, with medians and the AUROC.

    runs: by name, (certainty, correct), both (queries,).
    score: what the certainty is, for the axis.
    """
    columns = 2 if len(runs) == 4 else min(_COLUMNS, len(runs))
    rows = -(-len(runs) // columns)
    figure = new_figure(0.4 + 2.1 * rows, PAGE_WIDTH * (0.4 + 0.2 * columns))
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat[len(runs) :]:
        axes.set_axis_off()
    for axes, (name, (certainty, correct)) in zip(grid.flat, runs.items(), strict=False):
        certainty, right = np.asarray(certainty, dtype=float), np.asarray(correct).astype(bool)
        edges = np.linspace(*_range(certainty), bins + 1)
        for kind, chosen, colour in (("right", right, RIGHT), ("wrong", ~right, WRONG)):
            if chosen.any():
                values, label = certainty[chosen], f"{kind} (line: median)"
                axes.hist(values, edges, density=True, histtype="stepfilled", color=colour, alpha=0.25)
                dashes = "-" if kind == "right" else "--"
                axes.hist(values, edges, density=True, histtype="step", color=colour, linestyle=dashes, label=label)
                axes.axvline(float(np.median(values)), color=colour, linestyle=dashes, linewidth=1)
        axes.set_title(f"{name}\n{100 * right.mean():.1f}% right, AUROC {_auroc(certainty, right)}")
        axes.set_xlabel(score)
    for axes in grid[:, 0]:
        axes.set_ylabel("density")
    found = [dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True)) for axes in grid.flat]
    handles = {label: handle for panel in reversed(found) for label, handle in panel.items()}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=2)
    return figure


def _range(values: np.ndarray) -> tuple[float, float]:
    """All but the outermost half percent at either end, which would squeeze the rest."""
    low, high = np.quantile(values, [0.005, 0.995])
    return (float(low), float(high)) if high > low else (float(low) - 0.5, float(low) + 0.5)


def _auroc(certainty: np.ndarray, right: np.ndarray) -> str:
    try:
        return f"{certainty_auroc(certainty, right):.3f}"
    except UndefinedMetricError:
        return "undefined"
