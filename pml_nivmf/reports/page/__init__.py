"""The report: one self-contained HTML page from run folders.

To add a section: a function of what was found that returns a `Section`, or None where there is nothing to show, in a
file of its own, and its name in `document`.
"""

from collections.abc import Sequence
from pathlib import Path

from ..run_folders import find
from .document import document

__all__ = ["write_report"]


def write_report(folders: Sequence[str | Path], out: str | Path) -> Path:
    """Write the report on run folders, or on folders that hold some at any depth, to `out`; returns its path."""
    out = Path(out)
    page = document(find([Path(folder) for folder in folders]))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page, encoding="utf-8")
    return out
