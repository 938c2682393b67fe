"""Result tables: mean ± standard deviation with 95% t-intervals over seeds, for a terminal, Markdown and JSON."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scipy.stats import t as student_t

# Metrics shown first, in this order, if they were computed.
_FIRST = ("recall_at_1", "precision_at_1", "mean_average_precision_at_r", "NMI")


@dataclass(frozen=True)
class Estimate:
    """Mean over seeds, standard deviation, and half the width of the 95% t-interval of the mean (None for one seed)."""

    mean: float
    deviation: float | None
    half_width: float | None

    @staticmethod
    def of(values: Sequence[float]) -> "Estimate":
        mean = statistics.fmean(values)
        if len(values) < 2:
            return Estimate(mean, None, None)
        deviation = statistics.stdev(values)
        quantile = float(student_t.ppf(0.975, len(values) - 1))
        return Estimate(mean, deviation, quantile * deviation / math.sqrt(len(values)))

    def __str__(self) -> str:
        if self.deviation is None or self.half_width is None:
            return f"{100 * self.mean:.2f}"
        low, high = 100 * (self.mean - self.half_width), 100 * (self.mean + self.half_width)
        return f"{100 * self.mean:.2f} ± {100 * self.deviation:.2f} [{low:.2f}, {high:.2f}]"


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
        metrics = {
            metric: Estimate.of([summary["test"][metric] for summary in summaries]) for metric in summaries[0]["test"]
        }
        rows.append(Row(loss, len(summaries), metrics, statistics.fmean(s["seconds"] for s in summaries)))
    return rows


def ordered_metrics(rows: Sequence[Row]) -> list[str]:
    present = list(rows[0].metrics)
    return [m for m in _FIRST if m in present] + [m for m in present if m not in _FIRST]


def short_name(metric: str) -> str:
    """A column title: R@1 for recall_at_1, MAP@R, …; other names as they are."""
    if metric.startswith("recall_at_"):
        return f"R@{metric.removeprefix('recall_at_')}"
    return {"mean_average_precision_at_r": "MAP@R", "precision_at_1": "P@1", "map_at_1000": "mAP@1000"}.get(
        metric, metric
    )


def best_loss(rows: Sequence[Row], metric: str) -> str:
    return max(rows, key=lambda row: row.metrics[metric].mean).loss


def as_markdown(rows: Sequence[Row]) -> str:
    """A table with the best mean of each metric in bold; percent, mean ± deviation [95% interval]."""
    metrics = ordered_metrics(rows)
    lines = ["| loss | " + " | ".join(metrics) + " | seeds | s/run |", "|---" * (len(metrics) + 3) + "|"]
    for row in rows:
        cells = [
            f"**{row.metrics[m]}**" if row.loss == best_loss(rows, m) and len(rows) > 1 else str(row.metrics[m])
            for m in metrics
        ]
        lines.append(f"| {row.loss} | " + " | ".join(cells) + f" | {row.seeds} | {row.seconds:.1f} |")
    return "\n".join(lines)


def as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [
        {
            "loss": row.loss,
            "seeds": row.seeds,
            "seconds": row.seconds,
            "test": {
                name: {"mean": e.mean, "deviation": e.deviation, "half_width_95": e.half_width}
                for name, e in row.metrics.items()
            },
        }
        for row in rows
    ]
