"""One look for all figures: page width, legible in print, safe for colour-blind readers; in files or in a page."""

import io
import re
from pathlib import Path
from typing import Any

from matplotlib import rc_context, rc_params_from_file
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
_CSS_COLOURS = {light: f"var(--{name})" for name, (light, _) in PALETTE.items()}
_CSS_COLOURS |= {BLACK: "currentColor", STYLE["grid.color"]: "var(--line)"}
_DASHES = ("-", "--", "-.", ":")

# A decorator: functions run with STYLE instead of the user's matplotlib settings, which do not change.
styled = context(STYLE, after_reset=True)


def new_figure(height: float, width: float = PAGE_WIDTH) -> Figure:
    """A figure of this size in inches, independent of pyplot: there is nothing to close."""
    return Figure(figsize=(width, height))


def series_style(index: int) -> dict[str, Any]:
    """Colour and dashes of line number `index`; lines differ in grey, too."""
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": _DASHES[index % len(_DASHES)]}


@styled
def save(figure: Figure, path: str | Path) -> list[Path]:
    """Write path.png and path.svg, create their folder, and return the written paths."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    files = [path.with_name(f"{path.name}.{name}") for name in ("png", "svg")]
    for file in files:
        figure.savefig(file, dpi=200, metadata={"Date": None} if file.suffix == ".svg" else None)
    return files


def inline_svg(figure: Figure, name: str) -> str:
    """The figure as an <svg> element with the colours of the page's style sheet.

    name: prefix of the ids in the element, unique in the page.
    """
    buffer = io.StringIO()
    with rc_context({"svg.fonttype": "path", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    svg = re.sub(r"<style.*?</style>|<!--.*?-->|<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg[svg.index("<svg") :])
    return re.sub("|".join(_CSS_COLOURS), lambda match: _CSS_COLOURS[match[0]], svg)
