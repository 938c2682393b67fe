"""Result tables: mean ± standard deviation with 95% t-intervals over seeds, for Markdown, JSON, terminal and page."""

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from scipy.stats import t as student_t

from ..metrics import DIVERSITY_METRICS, lower_is_better
from .run_folders import Group, lookup

# Metrics shown first, in this order, if they were computed.
_FIRST = ("recall_at_1", "precision_at_1", "mean_average_precision_at_r", "NMI")
# Regular expressions. The name of a certainty metric ends with the certainty score; without one, the score is the norm.
_TITLES = {
    r"recall_at_(\d+)": "R@{}",
    "precision_at_1": "P@1",
    "mean_average_precision_at_r": "MAP@R",
    "map_at_1000": "mAP@1000",
    "certainty_auroc(.*)": "AUROC ({})",
    "aurc(.*)": "AURC ({})",
    "excess_aurc(.*)": "E-AURC ({})",
    r"recall_at_coverage_(\d+)(.*)": "R@1 at {}% ({})",
}
_SHOWN_METRICS = 3  # fit in a terminal of 80 columns
_OF_GALLERIES = ("nearest_neighbour", "accuracy", "ece", "nll", "auroc", "accuracy_at_coverage_80")
CHOSEN_ON_TEST = "epoch chosen on test classes, as in the paper"
_SCORES = {"": "norm", "_similarity": "similarity", "_ppk": "PPK", "nll": "NLL", "ece": "ECE", "auroc": "AUROC"}
_SCORES |= {"accuracy": "gallery", "accuracy_at_coverage_80": "at 80%", "nearest_neighbour": "nearest neighbour"}


@dataclass(frozen=True)
class Estimate:
    """Mean over seeds, standard deviation, and half the width of the mean's 95% t-interval (None for one seed).

    Seeds without a value are ignored; without any value the mean is NaN. percent: written as a percentage.
    """

    mean: float
    deviation: float | None
    half_width: float | None
    percent: bool = True

    @staticmethod
    def of(values: Sequence[float | None], percent: bool = True) -> "Estimate":
        numbers = [value for value in values if value is not None and math.isfinite(value)]
        if len(numbers) < 2:
            return Estimate(numbers[0] if numbers else math.nan, None, None, percent)
        deviation = statistics.stdev(numbers)
        quantile = float(student_t.ppf(0.975, len(numbers) - 1))
        half_width = quantile * deviation / math.sqrt(len(numbers))
        return Estimate(statistics.fmean(numbers), deviation, half_width, percent)

    def parts(self, digits: int | None = None) -> tuple[str, str]:
        """The mean with its deviation, and the interval; each is empty if it is undefined."""
        if math.isnan(self.mean):
            return "", ""
        digits = (2 if self.percent else 4) if digits is None else digits
        mean = self._written(self.mean, digits)
        if self.deviation is None or self.half_width is None:
            return mean, ""
        low, high = (self.mean + sign * self.half_width for sign in (-1, 1))
        low, high = (max(low, 0.0), min(high, 1.0)) if self.percent else (low, high)  # nothing is above 100%
        deviation, low_text, high_text = (self._written(value, digits) for value in (self.deviation, low, high))
        return f"{mean} ± {deviation}", f"[{low_text}, {high_text}]"

    def _written(self, value: float, digits: int) -> str:
        return f"{100 * value if self.percent else value:.{digits}f}"

    def overlaps(self, other: "Estimate") -> bool:
        """Whether the intervals overlap; an estimate of one seed has none."""
        return abs(self.mean - other.mean) <= (self.half_width or 0) + (other.half_width or 0)

    def __str__(self) -> str:
        return " ".join(filter(None, self.parts())) or "–"


@dataclass(frozen=True)
class Row:
    """The test metrics of one loss over all seeds."""

    loss: str
    seeds: int
    metrics: dict[str, Estimate]
    seconds: float
    chosen_on_test: bool = False  # whether test classes chose the epoch


def summarise(results: Sequence[tuple[str, dict[str, Any]]]) -> list[Row]:
    """Rows from (loss, summary) pairs, in the order in which losses first appear."""
    rows = []
    for loss in dict.fromkeys(name for name, _ in results):
        summaries = [summary for name, summary in results if name == loss]
        names = dict.fromkeys(metric for summary in summaries for metric in summary["test"])
        metrics = {name: Estimate.of([s["test"].get(name) for s in summaries], in_percent(name)) for name in names}
        seconds = statistics.fmean(summary["seconds"] for summary in summaries)
        chosen_on_test = any(str(summary.get("selected_by")).startswith("test_") for summary in summaries)
        rows.append(Row(loss, len(summaries), metrics, seconds, chosen_on_test))
    return rows


def selection_note(rows: Sequence[Row]) -> str:
    """What a table has to say if test classes chose the epochs of all or some rows."""
    names = [row.loss for row in rows if row.chosen_on_test]
    return CHOSEN_ON_TEST + (f" ({', '.join(names)})" if len(names) < len(rows) else "") if names else ""


def in_percent(metric: str) -> bool:
    """Whether a metric is a share. Diversities are distances and variances, a likelihood is in nats."""
    return metric not in DIVERSITY_METRICS and not metric.endswith("_nll")


def ordered_metrics(rows: Sequence[Row]) -> list[str]:
    """The metrics of all rows, the most important first."""
    present = list(dict.fromkeys(metric for row in rows for metric in row.metrics))
    return [m for m in _FIRST if m in present] + [m for m in present if m not in _FIRST]


def short_name(metric: str) -> str:
    """A column title such as R@1, MAP@R or AUROC (norm); unknown names stay as they are."""
    for pattern, title in _TITLES.items():
        if match := re.fullmatch(pattern, metric):
            return title.format(*(_SCORES.get(part, part) for part in match.groups()))
    return metric


def best_losses(rows: Sequence[Row], metric: str) -> list[str]:
    """The loss with the best mean (for some metrics the lowest), several if they tie, none if no row has the metric."""
    means = {row.loss: row.metrics[metric].mean for row in rows if metric in row.metrics}
    means = {loss: mean for loss, mean in means.items() if not math.isnan(mean)}
    pick = min if lower_is_better(metric.rpartition(".")[2]) else max
    return [loss for loss, mean in means.items() if mean == pick(means.values())]


def as_markdown(rows: Sequence[Row], titles: Mapping[str, str] | None = None) -> str:
    """Estimates as mean ± deviation [95% interval] in percent, with the best mean of each metric in bold.

    titles: the metrics to show, with the titles of their columns; None shows all of them.
    """
    titles = titles or {metric: metric for metric in ordered_metrics(rows)}
    lines = [_line("loss", *titles.values(), "seeds", "s/run"), "|---" * (len(titles) + 3) + "|"]
    for row in rows:
        texts = {metric: str(row.metrics.get(metric, "–")) for metric in titles}
        cells = [f"**{text}**" if row.loss in best_losses(rows, metric) else text for metric, text in texts.items()]
        lines.append(_line(row.loss, *cells, row.seeds, f"{row.seconds:.0f}"))
    return "\n".join(lines)


def _line(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def noise_note(estimates: Mapping[str, Estimate], best: Sequence[str]) -> str:
    """A sentence about the losses that may be as good as the best ones."""
    others = [name for name in estimates if name not in best]
    overlapping = [name for name in others if estimates[name].overlaps(estimates[best[0]])]
    if any(estimate.half_width is None for estimate in estimates.values()):
        return "With a single seed there is no interval: small differences mean little."
    if overlapping:
        return f"Overlapping intervals, so the order is uncertain: {', '.join(overlapping)}."
    return "No other interval overlaps with it." if len(best) == 1 else "They are level."


def print_tables(title: str, rows: Sequence[Row]) -> None:
    """Print the most important metrics, which differences may be noise, and how well galleries recognise classes."""
    metrics = ordered_metrics(rows)
    shown = [metric for metric in metrics if not metric.startswith("gallery_")][:_SHOWN_METRICS]
    _print_table(title, rows, {metric: short_name(metric) for metric in shown})
    if (best := best_losses(rows, metrics[0])) and len(rows) > 1:
        note = noise_note({row.loss: row.metrics[metrics[0]] for row in rows if metrics[0] in row.metrics}, best)
        print(f"Best {short_name(metrics[0])}: {', '.join(best)}. {note}")
    for title, columns in gallery_tables(metrics).items():
        _print_table(title, rows, dict([*columns.items()][:_SHOWN_METRICS]))


def gallery_tables(metrics: Sequence[str]) -> dict[str, dict[str, str]]:
    """{title: {metric: title of its column}} for each number of images that galleries were measured with."""
    counts = sorted({int(metric.split("_")[1]) for metric in metrics if metric.startswith("gallery_")})
    title = "Test classes enrolled with at most {} images each"
    return {title.format(n): {f"gallery_{n}_shot_{name}": _SCORES[name] for name in _OF_GALLERIES} for n in counts}


def _print_table(title: str, rows: Sequence[Row], metrics: Mapping[str, str]) -> None:
    table = Table(title=f"{title}:\ntest metrics in percent, mean ± deviation \\[95% interval of the mean], * best")
    table.add_column("loss", overflow="fold")  # a long name is broken into lines, a number is not
    for name in metrics.values():
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        marks = ["* " if row.loss in best_losses(rows, metric) else "" for metric in metrics]
        cells = [str(row.metrics.get(metric, "–")).replace(" [", "\n\\[") for metric in metrics]
        table.add_row(row.loss, *map(str.__add__, marks, cells))
    Console().print(table)


def search_markdown(losses: Sequence[dict[str, Any]]) -> str:
    """The best trial of each loss in sweep.json."""
    lines = [_line("loss", "trials", "best score in percent", "best settings"), "|---" * 4 + "|"]
    for loss in losses:
        best = loss["best"] or {"score": math.nan, "values": {}}
        numbers = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in best["values"].items()}
        settings = ", ".join(f"{key}={value}" for key, value in numbers.items())
        lines.append(_line(loss["loss"], loss["finished"], f"{100 * best['score']:.2f}", settings))
    return "\n".join(lines)


class Column(NamedTuple):
    """A column of a table of the page.

    path: of the number in the summaries, such as test.recall_at_1.
    group: a title above columns that belong together. ranked: whether the best estimate is bold.
    """

    path: str
    title: str
    group: str = ""
    percent: bool = True
    ranked: bool = True
    digits: int = 2


def as_view(groups: Sequence[Group], columns: Sequence[Column]) -> dict[str, Any]:
    """What the table macro of the templates needs; columns without any number are dropped."""
    rows = []
    for group in groups:
        found = {c.path: [lookup(run.summary, c.path) for run in group.runs] for c in columns}
        estimates = {c.path: Estimate.of(found[c.path], c.percent) for c in columns}
        rows.append(Row(group.name, len(group.runs), estimates, math.nan))
    best = {column.path: best_losses(rows, column.path) for column in columns}
    shown = [column for column in columns if best[column.path]]
    of_one_seed = {path for row in rows for path, e in row.metrics.items() if row.seeds > 1 and e.half_width is None}
    return {
        "rows": rows,
        "columns": shown,
        "groups": [(title, len(list(members))) for title, members in groupby(shown, key=lambda column: column.group)],
        "best": {c.path: best[c.path] for c in shown if c.ranked and len(rows) > 1 and c.path not in of_one_seed},
    }
