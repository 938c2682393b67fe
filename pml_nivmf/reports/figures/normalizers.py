"""log C_M(κ) and what was published to approximate it (the paper's Fig. 8)."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from .style import BLACK, COLOURS, new_figure, styled

_SMALLEST = 1e-3  # nats: differences below are not shown


class NormalizerCurves(NamedTuple):
    """concentration: κ, (n,). exact: log C_M(κ), (n,). others: by name, (n,)."""

    dim: int
    concentration: np.ndarray
    exact: np.ndarray
    others: Mapping[str, np.ndarray]


@styled
def normalizer_approximations(dimensions: list[NormalizerCurves]) -> Figure:
    """A column a dimension: above the curves, below how far each is from the exact one, on a log axis."""
    figure = new_figure(4.6)
    above, below = figure.subplots(2, len(dimensions), squeeze=False, sharex="col")
    for top, bottom, curves in zip(above, below, dimensions, strict=True):
        kappa = curves.concentration
        top.plot(kappa, curves.exact, color=BLACK, linewidth=2.4, label="exact")
        for index, (name, values) in enumerate(curves.others.items()):
            style = {"color": COLOURS[index], "linestyle": ("--", "-.", ":", (0, (5, 1)))[index % 4]}
            top.plot(kappa, values, label=name, **style)
            error = np.abs(values - curves.exact)
            bottom.plot(kappa, np.where(error >= _SMALLEST, error, np.nan), label=name, **style)
        top.set_title(f"$M = {curves.dim}$")
        bottom.set(yscale="log")
        top.margins(x=0)
        bottom.set_xlabel(r"concentration $\kappa$")
    above[0].set_ylabel(r"$\log C_M(\kappa)$ (nats)")
    below[0].set_ylabel(r"distance from exact (nats)")
    handles, labels = above[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure
