"""The page as a whole: head, table of contents, sections; nothing is loaded from anywhere."""

import base64
import hashlib
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from ... import __version__
from ..html import Markup, tag
from ..run_folders import Found
from .configuration import configuration
from .images import images
from .overview import overview
from .reproduction import environment, reproduction
from .results import results
from .section import Section
from .training import training
from .uncertainty import uncertainty

_HERE = Path(__file__).parent
_SECTIONS = (overview, results, training, uncertainty, images, configuration, environment, reproduction)


def document(found: Found) -> str:
    """The HTML of a report."""
    sections = [section for make in _SECTIONS if (section := make(found)) is not None]
    return "<!DOCTYPE html>\n" + tag("html", _head(found), _body(found, sections), lang="en")


def _head(found: Found) -> Markup:
    script = _script()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # Our own script and no other, pictures in the page and no others, whatever a run is called.
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{found.name}: report"),
        tag("style", Markup((_HERE / "style.css").read_text())),
    )


def _body(found: Found, sections: Sequence[Section]) -> Markup:
    links = [tag("li", tag("a", section.title, href=f"#{section.anchor}")) for section in sections]
    contents = tag("nav", tag("h2", "Contents"), tag("ol", links), aria_label="Contents")
    parts = [tag("section", tag("h2", s.title, id=s.anchor), s.body, aria_labelledby=s.anchor) for s in sections]
    return tag(
        "body",
        tag("a", "Skip to the results", href="#results", class_="skip"),
        tag("header", tag("h1", found.name), tag("p", _subtitle(found))),
        tag("div", contents, tag("main", parts), class_="columns"),
        tag("script", Markup(_script())),
    )


def _subtitle(found: Found) -> str:
    seconds = max((run.folder / "summary.json").stat().st_mtime for run in found.runs)
    day = datetime.fromtimestamp(seconds, timezone.utc).date().isoformat()
    count = len(found.runs)
    return f"{count} run{'s' * (count > 1)}, the last finished on {day}; written by pml_nivmf {__version__}"


def _script() -> str:
    return (_HERE / "script.js").read_text()
