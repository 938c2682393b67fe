"""Lines over something, one colour a run, bands over seeds: risk against coverage, and training."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...metrics import risk_coverage
from .style import new_figure, series_style, styled

_COLUMNS = 5  # of names that fit beside each other
_COVERAGES = np.linspace(0.02, 1, 197)  # below, the risk is that of a handful of items


@styled
def risk_coverage_curves(runs: Mapping[str, Sequence[tuple[np.ndarray, np.ndarray]]]) -> Figure:
    """The share of wrong retrievals among the most certain queries, against the share of queries answered.

    runs: by name, a (certainty, correct) a seed, both (queries,). The line is the mean over seeds, the band one
    standard deviation; the legend gives the area, AURC.
    """
    figure = new_figure(3.2, 4.9)
    axes = figure.subplots()
    for index, (name, seeds) in enumerate(runs.items()):
        curves = [risk_coverage(certainty, correct) for certainty, correct in seeds]
        risks = np.stack([np.interp(_COVERAGES, curve.coverage.numpy(), curve.risk.numpy()) for curve in curves])
        area = np.mean([curve.area for curve in curves])
        line_with_band(axes, 100 * _COVERAGES, 100 * risks, f"{name} (AURC {100 * area:.1f}%)", index)
    axes.set(xlabel="coverage: queries answered, the most certain first (%)", ylabel="risk: wrong ones among them (%)")
    axes.set(xlim=(0, 100), ylim=(0, None))
    axes.legend()
    return figure


@styled
def training_curves(
    histories: Mapping[str, Sequence[Sequence[Mapping[str, float]]]], metrics: Mapping[str, str]
) -> Figure:
    """A panel a metric over the epochs, a line a run, with a band over seeds and a mark at the best epoch of the mean.

    histories: by name, a history a seed: rows such as {"epoch": 1, "train_loss": 2.3, "validation_recall_at_1": 0.4}; a
        metric may be missing in rows where it was not measured.
    metrics: what to draw and how to call it, such as {"train_loss": "training loss"}. Where the name has "loss" in it,
        lower is better.
    """
    figure = new_figure(2.7, 3.45 * len(metrics))
    panels = figure.subplots(1, len(metrics), squeeze=False)[0]
    for axes, (metric, label) in zip(panels, metrics.items(), strict=True):
        for index, (name, seeds) in enumerate(histories.items()):
            epochs, values = _over_epochs(name, seeds, metric)
            mean = line_with_band(axes, epochs, values, name, index)
            if metric != "train_loss":
                best = int(np.nanargmin(mean) if "loss" in metric else np.nanargmax(mean))
                axes.plot(epochs[best], mean[best], **series_style(index, marker=True))
        axes.set(xlabel="epoch", ylabel=label)
        axes.xaxis.get_major_locator().set_params(integer=True)
    handles, labels = panels[0].get_legend_handles_labels()
    columns = len(labels) if len(labels) <= _COLUMNS else -(-len(labels) // 2)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)
    return figure


def _over_epochs(
    name: str, seeds: Sequence[Sequence[Mapping[str, float]]], metric: str
) -> tuple[np.ndarray, np.ndarray]:
    """Epochs that any seed has, (epochs,), and values (seeds, epochs), NaN where a seed stopped earlier."""
    found: list[dict[float, float]] = [{row["epoch"]: row[metric] for row in rows if metric in row} for rows in seeds]
    epochs = sorted(set().union(*found))
    if not epochs:
        raise ValueError(f"no history of {name!r} has the metric {metric!r}")
    return np.array(epochs), np.array([[seed.get(epoch, np.nan) for epoch in epochs] for seed in found])


def line_with_band(axes: Axes, x: np.ndarray, values: np.ndarray, label: str, index: int) -> np.ndarray:
    """Mean and deviation of `values` (seeds, x) over the seeds that are there; returns the mean."""
    mean = np.nanmean(values, axis=0)
    style: dict[str, Any] = series_style(index)
    axes.plot(x, mean, label=label, **style)
    counts = (~np.isnan(values)).sum(axis=0)
    squares = np.nansum((values - mean) ** 2, axis=0)
    deviation = np.sqrt(squares / np.maximum(counts - 1, 1))
    if len(values) > 1:
        axes.fill_between(x, mean - deviation, mean + deviation, color=style["color"], alpha=0.15, linewidth=0)
    return mean
