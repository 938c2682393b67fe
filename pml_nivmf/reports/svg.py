"""Figures inside a page: SVG that takes its colours from the page, light or dark, and shares no name with another."""

import io
import re

from matplotlib import rc_context
from matplotlib.figure import Figure

from .figures import style
from .html import Markup, tag

_GRID = str(style.STYLE["grid.color"])
# What a figure's colours are called in the page's style sheet; text and axes are in the page's own ink.
_PAGE_COLOURS = {
    style.BLACK: "currentColor",
    _GRID: "var(--line)",
    style.BLUE: "var(--blue)",
    style.VERMILLION: "var(--vermillion)",
    style.GREEN: "var(--green)",
    style.PURPLE: "var(--purple)",
    style.ORANGE: "var(--orange)",
    style.SKY: "var(--sky)",
}
_NO_METADATA = {"Creator": None, "Date": None, "Format": None, "Type": None}


def inline_svg(figure: Figure, name: str, alt: str) -> Markup:
    """The figure as an <svg> element.

    name: unlike any other figure's of the page. alt: what it shows, for those who do not see it.
    """
    buffer = io.StringIO()
    with rc_context({"svg.hashsalt": name, "svg.fonttype": "path"}):
        figure.savefig(buffer, format="svg", transparent=True, metadata=_NO_METADATA)
    return _for_page(buffer.getvalue(), name, alt)


def plot(figure: Figure, name: str, alt: str, caption: str) -> Markup:
    return tag("figure", inline_svg(figure, name, alt), tag("figcaption", caption), class_="plot")


def _for_page(text: str, name: str, alt: str) -> Markup:
    width = re.search(r'<svg[^>]*? width="([\d.]+)pt"', text)
    box = re.search(r'viewBox="([^"]+)"', text)
    if not width or not box:
        raise ValueError("the SVG has no size: this version of matplotlib writes it in another way")
    body = text[text.index(">", text.index("<svg")) + 1 : text.rindex("</svg>")]
    body = re.sub(r"<style[^>]*>.*?</style>|<!--.*?-->|<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'\bid="', f'id="{name}-', body)
    body = re.sub(r'((?:xlink:)?href="#|url\(#)', rf"\g<1>{name}-", body).replace("xlink:href", "href")
    for colour, of_page in _PAGE_COLOURS.items():
        body = re.sub(re.escape(colour), of_page, body, flags=re.IGNORECASE)
    # tag() escapes what a run is called; the drawing itself is matplotlib's
    size = f"width:{float(width[1]) / 72 * 96:.0f}px"
    return tag("svg", Markup(body), viewBox=box[1], style=size, role="img", aria_label=alt)
