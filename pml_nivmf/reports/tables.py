"""Result tables: mean ± standard deviation with 95% t-intervals over seeds, for a terminal, Markdown and JSON."""

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scipy.stats import t as student_t

from ..metrics import DIVERSITY_METRICS, lower_is_better

# Metrics shown first, in this order, if they were computed.
_FIRST = ("recall_at_1", "precision_at_1", "mean_average_precision_at_r", "NMI")
_TITLES = {"mean_average_precision_at_r": "MAP@R", "precision_at_1": "P@1", "map_at_1000": "mAP@1000"}
# Of which certainty a metric speaks stands at the end of its name.
_CERTAINTY_TITLES = {
    "certainty_auroc": "AUROC",
    "aurc": "AURC",
    "excess_aurc": "E-AURC",
    r"recall_at_coverage_(\d+)": "R@1 at {}%",
}
_SCORES = {None: "norm", "similarity": "similarity", "ppk": "PPK"}


@dataclass(frozen=True)
class Estimate:
    """Mean over seeds, standard deviation, and half the width of the 95% t-interval of the mean (None for one seed).

    Seeds without a value are left out; where none has one, the mean is NaN. `percent`: whether it is written so.
    """

    mean: float
    deviation: float | None
    half_width: float | None
    percent: bool = True

    @staticmethod
    def of(values: Sequence[float | None], percent: bool = True) -> "Estimate":
        found = [value for value in values if value is not None and math.isfinite(value)]
        if len(found) < 2:
            return Estimate(found[0] if found else math.nan, None, None, percent)
        deviation = statistics.stdev(found)
        quantile = float(student_t.ppf(0.975, len(found) - 1))
        half_width = quantile * deviation / math.sqrt(len(found))
        return Estimate(statistics.fmean(found), deviation, half_width, percent)

    def written(self, value: float) -> str:
        """A number in this estimate's unit."""
        return f"{100 * value:.2f}" if self.percent else f"{value:.4f}"

    def __str__(self) -> str:
        if math.isnan(self.mean):
            return "–"
        if self.deviation is None or self.half_width is None:
            return self.written(self.mean)
        low, high = self.written(self.mean - self.half_width), self.written(self.mean + self.half_width)
        return f"{self.written(self.mean)} ± {self.written(self.deviation)} [{low}, {high}]"


@dataclass(frozen=True)
class Row:
    """One loss: its test metrics over all seeds."""

    loss: str
    seeds: int
    metrics: dict[str, Estimate]
    seconds: float


def summarise(results: Sequence[tuple[str, dict[str, Any]]]) -> list[Row]:
    """Rows from (loss, summary) pairs, in the order in which losses first appear."""
    rows = []
    for loss in dict.fromkeys(name for name, _ in results):
        summaries = [summary for name, summary in results if name == loss]
        names = dict.fromkeys(metric for summary in summaries for metric in summary["test"])
        metrics = {name: Estimate.of([s["test"].get(name) for s in summaries], in_percent(name)) for name in names}
        rows.append(Row(loss, len(summaries), metrics, statistics.fmean(s["seconds"] for s in summaries)))
    return rows


def in_percent(metric: str) -> bool:
    """Shares are; diversities are distances, variances and ratios."""
    return metric not in DIVERSITY_METRICS


def ordered_metrics(rows: Sequence[Row]) -> list[str]:
    """All that any row has."""
    present = list(dict.fromkeys(metric for row in rows for metric in row.metrics))
    return [m for m in _FIRST if m in present] + [m for m in present if m not in _FIRST]


def short_name(metric: str) -> str:
    """A column title: R@1 for recall_at_1, MAP@R, AUROC (norm), …; other names as they are."""
    for stem, title in _CERTAINTY_TITLES.items():
        found = re.fullmatch(rf"{stem}(?:_(similarity|ppk))?", metric)
        if found:
            return f"{title.format(*found.groups())} ({_SCORES[found.groups()[-1]]})"
    if metric.startswith("recall_at_"):
        return f"R@{metric.removeprefix('recall_at_')}"
    return _TITLES.get(metric, metric)


def cell(row: Row, metric: str) -> str:
    """The estimate, or a dash where the row lacks the metric."""
    return str(row.metrics[metric]) if metric in row.metrics else "–"


def best_loss(rows: Sequence[Row], metric: str) -> str | None:
    """The row with the best mean, of some metrics the lowest; None where no row has one."""
    means = {row.loss: row.metrics[metric].mean for row in rows if metric in row.metrics}
    means = {loss: mean for loss, mean in means.items() if not math.isnan(mean)}
    if not means:
        return None
    return (min if lower_is_better(metric) else max)(means, key=means.__getitem__)


def as_markdown(rows: Sequence[Row]) -> str:
    """A table with the best mean of each metric in bold; percent, mean ± deviation [95% interval]."""
    metrics = ordered_metrics(rows)
    lines = ["| loss | " + " | ".join(metrics) + " | seeds | s/run |", "|---" * (len(metrics) + 3) + "|"]
    for row in rows:
        bold = [row.loss == best_loss(rows, metric) and len(rows) > 1 for metric in metrics]
        texts = [cell(row, metric) for metric in metrics]
        cells = [f"**{text}**" if best else text for text, best in zip(texts, bold, strict=True)]
        lines.append(f"| {row.loss} | " + " | ".join(cells) + f" | {row.seeds} | {row.seconds:.1f} |")
    return "\n".join(lines)


def as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [
        {
            "loss": row.loss,
            "seeds": row.seeds,
            "seconds": row.seconds,
            "test": {
                name: {
                    "mean": None if math.isnan(e.mean) else e.mean,
                    "deviation": e.deviation,
                    "half_width_95": e.half_width,
                }
                for name, e in row.metrics.items()
            },
        }
        for row in rows
    ]


def _or_none(mean: float) -> float | None:
    return None if math.isnan(mean) else mean
