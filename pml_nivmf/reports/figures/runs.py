"""Figures of runs: bars of a metric, training, risk against coverage, norms, degradation."""

import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from ...metrics import risk_coverage
from ..tables import Estimate
from .style import BLACK, BLUE, PAGE_WIDTH, RIGHT, WRONG, new_figure, series_style, styled

_COVERAGES = np.linspace(0.02, 1, 197)  # below, the risk is that of very few items
Scored = tuple[np.ndarray, np.ndarray]  # certainty and correctness, both (queries,)


@styled
def ablation_bars(scores: Mapping[str, Sequence[float]], metric: str) -> Figure:
    """One bar for the mean of each method, with its standard deviation and each seed as a dot.

    scores: for each method, the percentages of its seeds.
    """
    figure = new_figure(0.75 + 0.34 * len(scores))
    axes = figure.subplots()
    for place, values in enumerate(scores.values()):
        estimate = Estimate.of(values, percent=False)
        room = [[estimate.mean], [100 - estimate.mean]]  # a percentage ends at 0 and 100
        whiskers = estimate.deviation and np.minimum(estimate.deviation, room)
        axes.barh(place, estimate.mean, 0.62, xerr=whiskers, color=(BLUE, 0.55), capsize=3)
        axes.plot(values, [place] * len(values), "o", color=BLACK, markersize=2.6, alpha=0.6)
        text = estimate.parts(digits=1)[0]
        axes.annotate(text, (1.01, place), xycoords=("axes fraction", "data"), va="center", fontsize=8)
    axes.grid(axis="y", visible=False)
    axes.set(yticks=range(len(scores)), yticklabels=list(scores), xlabel=f"{metric} (%)", xlim=(0, None))
    axes.invert_yaxis()
    return figure


@styled
def training_curves(histories: Mapping[str, Sequence[Sequence[dict[str, Any]]]], metrics: dict[str, str]) -> Figure:
    """One panel for each metric over the epochs; a marker shows the best epoch of the mean.

    histories: for each method, the history.json of its seeds. Epochs may lack a metric.
    metrics: the metrics to draw, with their labels. For names that contain "loss", lower is better.
    """
    figure, panels = _panels(len(metrics), 2, 2.2)
    for axes, (metric, label) in zip(panels, metrics.items(), strict=True):
        for index, (name, seeds) in enumerate(histories.items()):
            epochs = sorted({row["epoch"] for seed in seeds for row in seed if row.get(metric) is not None})
            by_epoch = [{row["epoch"]: row.get(metric) for row in seed} for seed in seeds]
            values = np.array([[seed.get(epoch) for epoch in epochs] for seed in by_epoch], dtype=float)
            mean = _line_with_band(axes, epochs, values, name, index, math.inf if metric == "train_loss" else 1)
            if epochs and metric != "train_loss":
                score = -mean if "loss" in metric else mean
                best = np.flatnonzero(score == score.max())[-1]  # of equal ones the last, as runs choose
                axes.plot(epochs[best], mean[best], "o", color=series_style(index)["color"])
        axes.set(xlabel="epoch", ylabel=label)
        axes.locator_params(axis="x", integer=True, min_n_ticks=1)
    _legend_below(figure, 5)
    return figure


@styled
def risk_coverage_curves(methods: Mapping[str, Sequence[Scored]]) -> Figure:
    """The share of wrong retrievals among the most certain queries, against the share of queries answered.

    methods: for each method, certainty and correctness of its seeds. The legend gives the area, AURC.
    """
    figure = new_figure(3.2, 4.9)
    axes = figure.subplots()
    for index, (name, seeds) in enumerate(methods.items()):
        curves = [risk_coverage(certainty, correct) for certainty, correct in seeds]
        risks = np.stack([np.interp(_COVERAGES, curve.coverage.numpy(), curve.risk.numpy()) for curve in curves])
        area = np.mean([curve.area for curve in curves])
        _line_with_band(axes, 100 * _COVERAGES, 100 * risks, f"{name} (AURC {100 * area:.1f}%)", index, 100)
    axes.set(xlabel="coverage: queries answered, the most certain first (%)", ylabel="risk: wrong ones among them (%)")
    axes.set(xlim=(0, 100), ylim=(0, None))
    axes.legend()
    return figure


@styled
def norm_histograms(methods: Mapping[str, Scored]) -> Figure:
    """One panel for each method: norms of right and wrong retrievals as densities, with medians."""
    figure, panels = _panels(len(methods), 2 if len(methods) == 4 else 3, 2.1, "density")
    for axes, (name, (certainty, correct)) in zip(panels, methods.items(), strict=True):
        edges = np.histogram_bin_edges(certainty, 40, np.quantile(certainty, [0.005, 0.995]).tolist()).tolist()
        for label, chosen, colour, dashes in (("right", correct, RIGHT, "-"), ("wrong", ~correct, WRONG, "--")):
            if chosen.any():
                style: dict[str, Any] = {"facecolor": (colour, 0.25), "edgecolor": colour, "linestyle": dashes}
                shown, text = certainty[chosen].clip(edges[0], edges[-1]), f"{label} (line: median)"
                axes.hist(shown, edges, histtype="stepfilled", density=True, label=text, **style)
                axes.axvline(float(np.median(certainty[chosen])), color=colour, linestyle=dashes, linewidth=1)
        axes.set_title(f"{name}\n{100 * correct.mean():.1f}% right")
        axes.set_xlabel("embedding norm ‖z‖")
    _legend_below(figure, 2)
    return figure


@styled
def degradation_curves(methods: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """One panel for each kind of degradation: the share of images with a lower norm, against the strength.

    methods: for each method, uncertainty.degradation.kinds of its seeds' summaries. A share of 0.5 is chance.
    """
    kinds = list(dict.fromkeys(kind for seeds in methods.values() for seed in seeds for kind in seed))
    figure, panels = _panels(len(kinds), 4, 1.9, "less certain (%)", sharey=True)
    for axes, kind in zip(panels, kinds, strict=True):
        axes.axhline(50, color=BLACK, linewidth=0.8, linestyle=(0, (1, 2)))
        for index, (name, seeds) in enumerate(methods.items()):
            if curves := [seed[kind] for seed in seeds if kind in seed]:
                shares = np.array([curve["norm"]["share_less_certain"] for curve in curves], dtype=float)
                _line_with_band(axes, 100 * np.array(curves[0]["strength"]), 100 * shares, name, index, 100)
        axes.set(title=kind, xlabel="strength (%)", ylim=(-3, 103), xlim=(0, 103))
    _legend_below(figure, 4)
    return figure


@styled
def weight_curves(scores: Mapping[str, Mapping[float, Sequence[float]]], metric: str) -> Figure:
    """A metric against the weight ω of ProxyAnchor, in equal steps, from 0 to ∞, ProxyAnchor alone [Fig. 3].

    scores: for each line, {ω: percentages of the seeds}.
    """
    figure = new_figure(3.0)
    axes = figure.subplots()
    weights = sorted({weight for line in scores.values() for weight in line})
    for index, (name, line) in enumerate(scores.items()):
        places = [place for place, weight in enumerate(weights) if weight in line]
        seeds = zip_longest(*(line[weights[place]] for place in places), fillvalue=math.nan)
        _line_with_band(axes, places, np.array(list(seeds)), name, index, 100)
    names = {0: "0\n(EL-nivMF)", math.inf: "∞\n(ProxyAnchor)"}
    axes.set(xticks=range(len(weights)), xticklabels=[names.get(weight, f"{weight:g}") for weight in weights])
    axes.set(xlabel="weight ω of ProxyAnchor", ylabel=f"{metric} (%)")
    _legend_below(figure, 3)
    return figure


def _panels(
    count: int, columns: int, height: float, ylabel: str = "", sharey: bool = False
) -> tuple[Figure, list[Axes]]:
    """A grid of `count` panels with at most `columns` in a row; one panel is as wide as half a page."""
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    figure = new_figure(0.5 + height * rows, PAGE_WIDTH * min(1, columns / 2))
    grid = figure.subplots(rows, columns, squeeze=False, sharey=sharey)
    for axes in grid[:, 0]:
        axes.set_ylabel(ylabel)
    for axes in grid.flat[count:]:
        axes.remove()
    return figure, list(grid.flat[:count])


def _line_with_band(axes: Axes, x: ArrayLike, values: np.ndarray, label: str, index: int, most: float) -> np.ndarray:
    """Draw mean and standard deviation of `values` (seeds, x) over the seeds that are not NaN; return the mean."""
    measured = np.ma.masked_invalid(values)
    mean, spread = measured.mean(axis=0), measured.std(axis=0, ddof=1)
    style = series_style(index)
    axes.plot(x, mean, label=label, marker="." if mean.size < 10 else "", **style)  # a single point is not a line
    if len(values) > 1:
        axes.fill_between(x, mean - spread, np.minimum(mean + spread, most), color=style["color"], alpha=0.15, lw=0)
    return np.asarray(mean)


def _legend_below(figure: Figure, columns: int) -> None:
    panels = [axes.get_legend_handles_labels() for axes in figure.axes]
    entries = {label: handle for panel in panels for handle, label in zip(*panel, strict=True)}
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=min(columns, len(entries)))
