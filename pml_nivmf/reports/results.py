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
from .tables import best_loss, short_name, summarise


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
        metrics = [column.partition(":")[0] for column in columns]
        titles = [column.partition(":")[2] or short_name(column) for column in columns]
        lines = [_line("loss", *titles, "seeds", "s/run"), "|---" * (len(columns) + 3) + "|"]
        summaries = []
        for run in self._runs(place):
            test = {name: float(run[name] or "nan") for name in metrics}
            summaries.append((run["variant"], {"seconds": float(run["seconds"]), "test": test}))
        rows = summarise(summaries)
        for row in rows:
            cells = [f"**{row.metrics[m]}**" if best_loss(rows, m) == row.loss else row.metrics[m] for m in metrics]
            lines.append(_line(row.loss, *cells, row.seeds, f"{row.seconds:.0f}"))
        return "\n".join(lines)

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


def _line(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"
