"""A sheet of queries with what was retrieved for them."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .pixels import as_pixels, short, show
from .style import BLACK, PAGE_WIDTH, RIGHT, WRONG, new_figure, styled


@styled
def retrieval_sheet(
    queries: np.ndarray,
    neighbours: np.ndarray,
    correct: np.ndarray,
    certainty: np.ndarray,
    similarity: np.ndarray | None = None,
    score: str = "‖z‖",
) -> Figure:
    """A query a row with its certainty, and its nearest neighbours: framed blue with a tick if they are of its class,
    vermillion and dashed with a cross if not.

    queries: images (q, …), bytes or floats in [0, 1], grey or channels first. neighbours: (q, k, …), nearest first.
    correct: (q, k). certainty: (q,). similarity: written above the neighbours, (q, k).
    """
    neighbours, correct = np.asarray(neighbours), np.asarray(correct).astype(bool)
    count, k = correct.shape
    if len(queries) != count or neighbours.shape[:2] != (count, k) or len(certainty) != count:
        raise ValueError(
            f"queries, neighbours, correct and certainty must be of the same queries, got {len(queries)}, "
            f"{neighbours.shape[:2]}, {correct.shape} and {len(certainty)}"
        )
    query_pixels = as_pixels(queries)
    found = as_pixels(neighbours.reshape(count * k, *neighbours.shape[2:])).reshape(count, k, *query_pixels.shape[1:])
    height, width = query_pixels.shape[1:3]
    figure = new_figure(0.3 + count * (PAGE_WIDTH / (k + 1.25) * height / width * 0.93 + 0.2))
    grid = figure.subplots(count, k + 2, squeeze=False, width_ratios=[1, 0.25, *[1] * k])
    for row in range(count):
        query_axes, gap, *rest = grid[row]
        gap.set_axis_off()
        _draw(query_axes, query_pixels[row], f"{score} = {short(certainty[row])}", BLACK, "-")
        for place, axes in enumerate(rest):
            title = "" if similarity is None else f"{similarity[row, place]:.2f}  "
            right = bool(correct[row, place])
            mark, colour, dashes = ("✓", RIGHT, "-") if right else ("✗", WRONG, "--")
            _draw(axes, found[row, place], title + mark, colour, dashes)
    cosine = "" if similarity is None else " with their cosine"
    figure.suptitle(f"left a query, then its nearest neighbours{cosine}: ✓ of its class, ✗ of another", fontsize=9)
    return figure


def _draw(axes: Axes, pixels: np.ndarray, title: str, colour: str, dashes: str) -> None:
    show(axes, pixels)
    axes.set_title(title, fontsize=7.5, pad=2.5, color=colour)
    for spine in axes.spines.values():
        spine.set(color=colour, linewidth=1.8 if colour != BLACK else 0.8, linestyle=dashes)
