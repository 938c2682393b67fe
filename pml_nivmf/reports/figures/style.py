"""One look for all figures: page width, readable in print, safe for colour-blind readers, no display needed."""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from matplotlib.figure import Figure
from matplotlib.style import context

PAGE_WIDTH = 6.9  # inches: the text width of A4
# Okabe & Ito's palette [Color Universal Design, 2008]; its yellow is left out, on white it cannot be seen.
BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
)
COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK)
RIGHT, WRONG = BLUE, VERMILLION
MAP = "viridis"  # even steps of lightness, so it also survives a grey printer
_DASHES = ("-", "--", "-.", ":")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")

STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "legend.fontsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.5,
    "legend.frameon": False,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "savefig.dpi": 200,
    "svg.fonttype": "path",  # looks the same where the font is missing
    "svg.hashsalt": "pml_nivmf",  # the same figure is the same file
}

_P = ParamSpec("_P")
_R = TypeVar("_R")


def styled(draw: Callable[_P, _R]) -> Callable[_P, _R]:
    """`draw` under STYLE, whatever the user's matplotlib settings are; they stay as they were."""

    @wraps(draw)
    def drawing(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with context(STYLE, after_reset=True):
            return draw(*args, **kwargs)

    return drawing


def new_figure(height: float, width: float = PAGE_WIDTH) -> Figure:
    """A figure of its own, not one of pyplot's: nothing to close, no display, in inches."""
    return Figure(figsize=(width, height), layout="constrained")


def series_style(index: int, marker: bool = False) -> dict[str, Any]:
    """Colour and dashes of the index-th of several lines: told apart in grey, too."""
    style: dict[str, Any] = {"color": COLOURS[index % len(COLOURS)], "linestyle": _DASHES[index % len(_DASHES)]}
    return style | {"marker": _MARKERS[index % len(_MARKERS)], "markersize": 4} if marker else style
