"""Where it was run, and how to run it again."""

import shlex
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..html import Markup, join, tag
from ..run_folders import Found, Run, find
from .section import Section, scrolling

_VERSIONS = ("pml_nivmf", "git_commit", "python", "platform", "cuda")


def environment(found: Found) -> Section | None:
    facts: dict[str, list[Any]] = {name: [run.environment.get(name) for run in found.runs] for name in _VERSIONS}
    packages = dict.fromkeys(name for run in found.runs for name in run.environment.get("packages", {}))
    facts |= {name: [run.environment.get("packages", {}).get(name) for run in found.runs] for name in packages}
    rows = [_row(name, values) for name, values in facts.items() if any(value is not None for value in values)]
    if not rows:
        return None
    caption = "Where the runs were made; marked where they differ"
    table = tag("table", tag("caption", caption), tag("tbody", rows), class_="settings")
    return Section("Environment", scrolling(table, caption))


def _row(name: str, values: Sequence[Any]) -> Markup:
    different = list(dict.fromkeys("–" if value is None else str(value) for value in values))
    text = ", ".join(different)
    cell = tag("mark", text) if len(different) > 1 else text
    return tag("tr", tag("th", name, scope="row"), tag("td", tag("code", cell)))


def reproduction(found: Found) -> Section:
    commands = dict.fromkeys(str(run.environment["command"]) for run in found.runs if "command" in run.environment)
    alone = "One run alone, with its seed: save its configuration from above, or take config.yaml from its folder, and"
    return Section(
        "Reproduce",
        join(
            tag("p", "The commands that made these runs:"),
            _code(list(commands) or ["not recorded"]),
            tag("p", alone),
            _code([shlex.join(["pml-nivmf", "run", "config.yaml", *_plugins(commands), "general.run_dir=again"])]),
            tag("p", "This page:"),
            _code([shlex.join(["pml-nivmf", "report", *_folders(found)])]),
        ),
    )


def _plugins(commands: Iterable[str]) -> list[str]:
    """--plugin FILE of every command: without them a run of one's own classes would not find them."""
    files = []
    for command in commands:
        words = _words(command)
        files += [file for word, file in pairwise(words) if word == "--plugin"]
        files += [word.removeprefix("--plugin=") for word in words if word.startswith("--plugin=")]
    return [word for file in dict.fromkeys(files) for word in ("--plugin", file)]


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # of a folder that others wrote, an open quote
        return []


def _folders(found: Found) -> list[str]:
    """What gives these runs in this order, as one would type it here."""
    by_group = [path for group in found.groups for path in _of_group(found.folder / group.name, group.runs)]
    here = Path.cwd()
    return [
        str(folder.relative_to(here) if here in folder.parents else folder)
        for folder in (found.given if len(found.given) == 1 else by_group)
    ]


def _of_group(folder: Path, runs: Sequence[Run]) -> list[Path]:
    """Its folder if it holds no other runs, else theirs."""
    shown = [run.folder for run in runs]
    return [folder] if [run.folder for run in find([folder]).runs] == shown else shown


def _code(lines: Sequence[str]) -> Markup:
    return tag("pre", tag("code", "\n".join(lines)))
