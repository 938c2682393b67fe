"""HTML pages that need no network: the report on run folders, and a sheet of identified queries.

Words and tables are in templates/, the report's numbers and figures come from `view`.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from PIL import Image

from .. import __version__
from ..files import write_text
from .figures.style import PALETTE
from .run_folders import read_runs
from .view import image_uri, view

_TEMPLATES = Path(__file__).parent / "templates"
_SIDE = 96  # pixels of an image of the sheet


def write_report(runs: Sequence[str | Path], path: str | Path) -> Path:
    """Write the report on run folders, or on all run folders below the given folders, and return its path."""
    path, shown = Path(path), read_runs([Path(run) for run in runs])
    script = (_TEMPLATES / "report.js").read_text()
    finished = max((run.folder / "summary.json").stat().st_mtime for run in shown.runs)
    templates = _environment()
    templates.globals |= view(shown)
    page = templates.get_template("report.html.j2").render(
        palette=PALETTE,
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        finished=datetime.fromtimestamp(finished, timezone.utc).date(),
        version=__version__,
    )
    write_text(path, page)
    return path


def _environment() -> Environment:
    loader = FileSystemLoader(_TEMPLATES)
    return Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)


def write_sheet(answers: Mapping[str, Any], path: Path) -> Path:
    """Write a page of queries beside the enrolled images that support their answers.

    answers: `inference.Answer` by the name of the query, which is a path for images.
    """
    write_text(path, _environment().get_template("sheet.html.j2").render(answers=answers, picture=_picture))
    return path


def _picture(name: str) -> str | None:
    """The image as a data URI; None if there is none to read, as with embeddings."""
    try:
        with Image.open(name) as image:
            image.thumbnail((_SIDE, _SIDE))
            return image_uri(np.moveaxis(np.asarray(image.convert("RGB")), -1, 0))
    except OSError:
        return None
