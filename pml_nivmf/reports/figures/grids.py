"""Images from the lowest to the highest norm (the paper's Figs. 6, 9 and 10)."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from .pixels import as_pixels, short, show
from .style import PAGE_WIDTH, new_figure, styled


def evenly_ranked(certainty: np.ndarray, count: int) -> np.ndarray:
    """Indices of `count` items, from the least to the most certain, at even steps of rank, both ends among them."""
    order = np.argsort(certainty, kind="stable")
    return order[np.linspace(0, len(order) - 1, min(count, len(order))).round().astype(int)]


@styled
def norm_grid(
    images: np.ndarray, certainty: np.ndarray, rows: int = 4, columns: int = 10, score: str = "‖z‖"
) -> Figure:
    """Read like a text: the first image has the lowest norm of all, the last the highest, in even steps of rank.

    images: bytes or floats in [0, 1], (n, height, width) or (n, 1 or 3, height, width). certainty: (n,).
    """
    _check(images, certainty)
    chosen = evenly_ranked(certainty, rows * columns)
    pixels = as_pixels(np.asarray(images)[chosen])
    rows = -(-len(chosen) // columns)
    figure = _frame(rows, columns, pixels)
    grid = figure.subplots(rows, columns, squeeze=False).flat
    for axes in grid[len(chosen) :]:
        axes.set_axis_off()
    for axes, image, index in zip(grid, pixels, chosen, strict=False):
        show(axes, image)
        axes.set_title(short(certainty[index]), fontsize=7, pad=2)
    figure.suptitle(f"from the lowest to the highest {score}, written above each image", fontsize=9)
    return figure


@styled
def class_norm_grid(
    images: np.ndarray,
    certainty: np.ndarray,
    labels: np.ndarray,
    classes: Sequence[int],
    names: Sequence[str] | None = None,
    columns: int = 10,
    score: str = "‖z‖",
) -> Figure:
    """A row a class, each from its lowest to its highest norm.

    classes: labels to show, in this order. names: what to write beside them, by default the labels.
    """
    _check(images, certainty)
    images, labels = np.asarray(images), np.asarray(labels)
    names = [str(label) for label in classes] if names is None else names
    figure = _frame(len(classes), columns, as_pixels(images[:1]), margin=0.075 * max(map(len, names)))
    grid = figure.subplots(len(classes), columns, squeeze=False)
    for row, (axes_of_row, label) in enumerate(zip(grid, classes, strict=True)):
        members = np.flatnonzero(labels == label)
        if len(members) == 0:
            raise ValueError(f"no image has the label {label}")
        chosen = members[evenly_ranked(np.asarray(certainty)[members], columns)]
        for axes in axes_of_row[len(chosen) :]:
            axes.set_axis_off()
        for axes, image, index in zip(axes_of_row, as_pixels(images[chosen]), chosen, strict=False):
            show(axes, image)
            axes.set_title(short(certainty[index]), fontsize=7, pad=2)
        axes_of_row[0].set_ylabel(names[row], rotation=0, ha="right", va="center")
    figure.suptitle(f"a class a row, from its lowest to its highest {score}, written above each image", fontsize=9)
    return figure


def _frame(rows: int, columns: int, pixels: np.ndarray, margin: float = 0.0) -> Figure:
    """Page width; as high as images of this shape, with a number above each and a margin for names, need."""
    height, width = pixels.shape[1:3]
    return new_figure(0.3 + rows * ((PAGE_WIDTH - margin) / columns * height / width * 0.93 + 0.19))


def _check(images: np.ndarray, certainty: np.ndarray) -> None:
    if len(images) != len(certainty) or len(images) == 0:
        raise ValueError(f"images and certainty must be of the same items, got {len(images)} and {len(certainty)}")
