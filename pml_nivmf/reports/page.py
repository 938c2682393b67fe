"""The report: one HTML page from run folders that needs no network.

Its words and tables are in templates/, its numbers and figures come from `view`.
"""

import base64
import hashlib
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from .. import __version__
from ..files import write_text
from .figures.style import PALETTE
from .run_folders import RunSet, read_runs
from .view import view

_TEMPLATES = Path(__file__).parent / "templates"


def write_report(runs: Sequence[str | Path], path: str | Path) -> Path:
    """Write the report on run folders, or on all run folders below the given folders, and return its path."""
    path = Path(path)
    write_text(path, _render(read_runs([Path(run) for run in runs])))
    return path


def environment() -> Environment:
    loader = FileSystemLoader(_TEMPLATES)
    return Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)


def _render(runs: RunSet) -> str:
    templates = environment()
    templates.globals |= view(runs)
    script = (_TEMPLATES / "report.js").read_text()
    finished = max((run.folder / "summary.json").stat().st_mtime for run in runs.runs)
    return templates.get_template("report.html.j2").render(
        palette=PALETTE,
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        finished=datetime.fromtimestamp(finished, timezone.utc).date(),
        version=__version__,
    )
