"""One look for all figures: page width, legible in print, safe for colour-blind readers, no display needed."""

from pathlib import Path
from typing import Any

from matplotlib import rc_params_from_file
from matplotlib.figure import Figure
from matplotlib.style import context

PAGE_WIDTH = 6.9  # inches: the text width of A4
STYLE: Any = rc_params_from_file(Path(__file__).with_name("figures.mplstyle"), use_default_template=False)
# Okabe & Ito's palette [Color Universal Design, 2008] for light and dark pages, without yellow, which is invisible on
# white. The page's style sheet defines these names as CSS variables.
PALETTE = {
    "blue": ("#0072b2", "#4aa8e0"),
    "vermillion": ("#d55e00", "#f08a45"),
    "green": ("#009e73", "#35c79c"),
    "purple": ("#cc79a7", "#dc9cc0"),
    "orange": ("#e69f00", "#f0b640"),
    "sky": ("#56b4e9", "#8fd0f5"),
}
BLACK = "#000000"
COLOURS = (*(light for light, _ in PALETTE.values()), BLACK)
BLUE = RIGHT = COLOURS[0]
WRONG = COLOURS[1]
MAP = "viridis"  # even steps of lightness, so it also survives a grey printer
_DASHES = ("-", "--", "-.", ":")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")

# A decorator: functions run with STYLE instead of the user's matplotlib settings, which do not change.
styled = context(STYLE, after_reset=True)


def new_figure(height: float, width: float = PAGE_WIDTH) -> Figure:
    """A figure of this size in inches, independent of pyplot: there is nothing to close."""
    return Figure(figsize=(width, height))


def series_style(index: int, marker: bool = False) -> dict[str, Any]:
    """Colour, dashes and, if asked for, marker of line number `index`; lines differ in grey, too."""
    style: dict[str, Any] = {"color": COLOURS[index % len(COLOURS)], "linestyle": _DASHES[index % len(_DASHES)]}
    return style | {"marker": _MARKERS[index % len(_MARKERS)], "markersize": 5} if marker else style
