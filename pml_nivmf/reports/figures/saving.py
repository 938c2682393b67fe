"""Write figures to files or into a page."""

import io
import re
from collections.abc import Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from .style import BLACK, PALETTE, STYLE, styled

FORMATS = ("png", "svg")
_CSS_COLOURS = {light: f"var(--{name})" for name, (light, _) in PALETTE.items()}
_CSS_COLOURS |= {BLACK: "currentColor", STYLE["grid.color"]: "var(--line)"}


@styled
def save(figure: Figure, path: str | Path, formats: Sequence[str] = FORMATS, dpi: int = 200) -> list[Path]:
    """Write path.png and path.svg, create their folder, and return the written paths.

    dpi: pixels per inch of PNG files and of images in SVG files; figures are 6.9 inches wide.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    files = [path.with_name(f"{path.name}.{name}") for name in formats]
    for file in files:
        figure.savefig(file, dpi=dpi, metadata={"Date": None} if file.suffix == ".svg" else None)
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
