"""RESULTS.md: a jinja2 template whose numbers are computed from recorded runs (see `recorded`).

The template can use `searches` (tuned.yaml) and these functions; a METRIC is a column of runs.csv:

    table("STUDY/DATA", "METRIC", "METRIC:Title", …)      a row for each variant: mean ± deviation [95% interval]
    gap("STUDY/DATA", "FIRST", "SECOND", "METRIC")        how much one variant is above another, with Welch's interval
"""

import statistics
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from scipy import stats

from . import recorded
from .tables import as_markdown, short_name, summarise


def write_page(folder: Path) -> str:
    """The folder's template, rendered with its recorded runs."""
    numbers = _Numbers(folder)
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True)
    template = environment.from_string((folder / "RESULTS.template.md").read_text())
    return template.render(table=numbers.table, gap=numbers.gap, searches=numbers.searches)


class _Numbers:
    def __init__(self, folder: Path) -> None:
        self.runs, self.searches = recorded.read(folder)

    def table(self, place: str, *columns: str) -> str:
        names = [column.partition(":") for column in columns]
        titles = {metric: title or short_name(metric) for metric, _, title in names}
        summaries = []
        for run in self._runs(place):
            test = {name: float(run[name] or "nan") for name in titles}
            summaries.append((run["variant"], {"seconds": float(run["seconds"]), "test": test}))
        return as_markdown(summarise(summaries), titles)

    def gap(self, place: str, first: str, second: str, metric: str) -> str:
        a, b = ([float(run[metric]) for run in self._runs(place, variant)] for variant in (first, second))
        interval = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
        gap = statistics.fmean(a) - statistics.fmean(b)
        return f"{100 * gap:+.1f} [{100 * interval.low:+.1f}, {100 * interval.high:+.1f}]"

    def _runs(self, place: str, variant: str | None = None) -> list[recorded.Record]:
        runs = [run for run in self.runs if place == f"{run['study']}/{run['data']}"]
        runs = [run for run in runs if variant in (None, run["variant"])]
        if not runs:
            raise ValueError(f"RESULTS.template.md: there are no runs of {variant or 'any loss'} in {place}")
        return runs
