"""What every section of the page is made of."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import isnan
from statistics import fmean
from typing import Any

from ...metrics import lower_is_better
from ..html import Child, Markup, join, tag
from ..run_folders import Group, Run
from ..tables import Estimate, Row, best_loss, in_percent, short_name


@dataclass(frozen=True)
class Section:
    title: str
    body: Markup

    @property
    def anchor(self) -> str:
        return slug(self.title)


@dataclass(frozen=True)
class Column:
    """A column of numbers, one a run; shown as mean ± deviation [95% interval] over the runs of a group.

    key: a name, and what says whether less is better. explained: for those who do not know it, once for a group.
    group: what columns beside each other share, written above them. digits: behind the point.
    """

    key: str
    title: str
    value: Callable[[Run], float | None]
    explained: str = ""
    percent: bool = True
    ranked: bool = True  # whether there is a best
    group: str = ""
    digits: int = 2
    interval: bool = True


def slug(text: str) -> str:
    """Letters and digits only: safe as an id, whatever a run is called."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"


def metric_column(metric: str) -> Column:
    """Of the test metrics in the summary."""
    return Column(metric, short_name(metric), lambda run: run.results["test"].get(metric), percent=in_percent(metric))


def percents(scores: Mapping[str, Sequence[float]]) -> str:
    """Means over seeds in a sentence, for those who do not see a figure."""
    return "; ".join(f"{name} {fmean(values):.1f}%" for name, values in scores.items())


def dig(values: Any, *keys: str) -> Any:
    """values[key][key]…, None where one is missing."""
    for key in keys:
        if not isinstance(values, dict):
            return None
        values = values.get(key)
    return values


def estimate_table(groups: Sequence[Group], columns: Sequence[Column], caption: str) -> Markup:
    """A row a group, sortable by every column; columns for which no run has a value are left out."""
    rows = [
        Row(group.name, len(group.runs), {c.key: Estimate.of([c.value(r) for r in group.runs]) for c in columns}, 0.0)
        for group in groups
    ]
    columns = [c for c in columns if any(not isnan(row.metrics[c.key].mean) for row in rows)]
    best = {c.key: best_loss(rows, c.key) if c.ranked and len(groups) > 1 else None for c in columns}
    body = [
        tag("tr", tag("th", row.loss, scope="row", data_value=row.loss), [_cell(row, c, best[c.key]) for c in columns])
        for row in rows
    ]
    table = tag("table", tag("caption", caption), _head(columns), tag("tbody", body), class_="sortable")
    return scrolling(table, caption)


def _head(columns: Sequence[Column]) -> Markup:
    titles = tag("tr", _header("name", "name", ""), [_header(c.title, full_title(c), _explanation(c)) for c in columns])
    if not any(c.group for c in columns):
        return tag("thead", titles)
    spans = [(name, len(list(members))) for name, members in groupby(c.group for c in columns)]
    above = [tag("th", name, colspan=count, scope="colgroup", class_="group") for name, count in spans]
    return tag("thead", tag("tr", tag("td"), above), titles)


def scrolling(table: Markup, label: str) -> Markup:
    """Wide tables scroll by themselves, by keyboard too, instead of widening the page."""
    return tag("div", table, class_="wide", tabindex=0, role="region", aria_label=label)


def glossary(columns: Sequence[Column]) -> Markup:
    entries = [join(tag("dt", c.group or c.title), tag("dd", _explanation(c))) for c in columns if c.explained]
    return tag("details", tag("summary", "What the columns mean"), tag("dl", entries))


def full_title(column: Column) -> str:
    return f"{column.group} {column.title}".strip()


def _explanation(column: Column) -> str:
    unit = " In percent." if column.percent else ""
    return f"{column.explained}{unit}{' Lower is better.' if lower_is_better(column.key) else ''}".strip()


def _header(title: str, full: str, explained: str) -> Markup:
    arrow = tag("span", class_="arrow", aria_hidden="true")
    button = tag("button", title, arrow, type="button", title=explained or None, aria_label=f"sort by {full}")
    return tag("th", button, scope="col")


def _cell(row: Row, column: Column, best: str | None) -> Markup:
    estimate = row.metrics[column.key]
    if isnan(estimate.mean):
        return tag("td", "–", class_="none")
    text = _written(column, estimate.mean)
    interval = None
    if column.interval and estimate.deviation is not None and estimate.half_width is not None:
        text += f" ± {_written(column, estimate.deviation)}"
        low, high = (_written(column, estimate.mean + sign * estimate.half_width) for sign in (-1, 1))
        interval = tag("small", f"[{low}, {high}]")
    mean: Child = tag("strong", text) if best == row.loss else text
    return tag("td", mean, interval, data_value=repr(estimate.mean))


def _written(column: Column, value: float) -> str:
    return f"{100 * value if column.percent else value:.{column.digits}f}".replace("-", "−")
