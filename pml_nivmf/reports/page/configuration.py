"""What was set, and where runs differ in it."""

from collections.abc import Sequence
from typing import Any

from ..html import Markup, join, tag
from ..run_folders import Found, Group
from .section import Section, scrolling
from .values import Path, described, differing, flow


def configuration(found: Found) -> Section:
    differences = differing([group.first.config for group in found.groups])
    whole = [_whole(group, differences, index > 0) for index, group in enumerate(found.groups)]
    return Section("Configuration", join(_table(found.groups, differences), whole))


def _table(groups: Sequence[Group], differences: dict[Path, list[Any]]) -> Markup | None:
    if len(groups) == 1:
        return None
    if not differences:
        return tag("p", "All runs have the same settings but for their seed.")
    names, settings = [group.name for group in groups], [".".join(path) for path in differences]
    cells = [[described(value) for value in values] for values in differences.values()]  # a row a setting
    if len(names) >= len(settings):  # the longer side goes down the page
        names, settings, cells = settings, names, [list(row) for row in zip(*cells, strict=True)]
    caption = "Settings in which the runs differ; everything else is the same"
    head = tag("tr", tag("th"), [tag("th", name, scope="col") for name in names])
    body = [
        tag("tr", tag("th", setting, scope="row"), [tag("td", tag("code", cell)) for cell in row])
        for setting, row in zip(settings, cells, strict=True)
    ]
    table = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", body), class_="settings")
    return scrolling(table, caption)


def _whole(group: Group, differences: dict[Path, list[Any]], screen_only: bool) -> Markup:
    """On paper one is enough: the table has what the others have else."""
    text = tag("pre", tag("code", _lines(group.first.config, (), differences)))
    title = tag("summary", f"Whole configuration of {group.name}, seed {group.first.seed}")
    return tag("details", title, text, data_screen_only=screen_only)


def _lines(values: dict[str, Any], path: Path, differences: dict[Path, list[Any]]) -> Markup:
    """YAML, the lines of settings that differ marked."""
    written = []
    for key, value in values.items():
        here = (*path, str(key))
        nested = isinstance(value, dict) and value
        line = f"{'  ' * len(path)}{key}:" + ("" if nested else f" {_scalar(value)}")
        marked = any(here[: len(other)] == other for other in differences)
        written.append(join(tag("mark", line) if marked else line, "\n"))
        if nested:
            written.append(_lines(value, here, differences))
    return join(written)


def _scalar(value: Any) -> str:
    return "null" if value is None else ("{}" if value == {} else flow(value))
