"""Figures to files."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from ...checks import check_option
from .style import styled

FORMATS = ("png", "svg")


def check_formats(formats: Sequence[str]) -> tuple[str, ...]:
    if isinstance(formats, str) or not formats:
        raise ValueError(f"formats must be a list of {' and '.join(FORMATS)}, got {formats!r}")
    return tuple(dict.fromkeys(check_option("format", name, FORMATS) for name in formats))


@styled
def save(figure: Figure, path: str | Path, formats: Sequence[str] = FORMATS, dpi: int = 200) -> list[Path]:
    """Write path.png and path.svg, folders included; returns what was written. Such a suffix in `path` is dropped.

    dpi: pixels an inch of PNG and of images in SVG; figures are 6.9 inches wide.
    """
    path = Path(path)
    stem = path.with_suffix("") if path.suffix.removeprefix(".") in FORMATS else path
    stem.parent.mkdir(parents=True, exist_ok=True)
    written = []
    for name in check_formats(formats):
        file = stem.with_name(f"{stem.name}.{name}")
        figure.savefig(file, format=name, dpi=dpi, metadata={"Date": None} if name == "svg" else None)
        written.append(file)
    return written
