"""Several methods, a bar each, with the spread over seeds (the paper's Fig. 5)."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from .style import BLACK, BLUE, new_figure, styled


@styled
def ablation_bars(
    scores: Mapping[str, Sequence[float]], metric: str, unit: str = "%", from_zero: bool = False
) -> Figure:
    """A bar to the mean of every method's seeds, its standard deviation, and every seed as a dot.

    scores: by method, one number a seed, in `unit`.
    metric: what they are, as in "R@1".
    from_zero: start the axis at zero. By default it starts just below the lowest score, and says so: bars then compare
        differences, not sizes.
    """
    names = list(scores)
    means, deviations = mean_and_deviation(scores)
    lowest = min(min(values) for values in scores.values())
    highest = max(max(values) for values in scores.values())
    start = 0.0 if from_zero else _round_below(lowest, highest)
    figure = new_figure(0.75 + 0.34 * len(names))
    axes = figure.subplots()
    places = np.arange(len(names))
    axes.barh(places, means - start, left=start, height=0.62, color=BLUE, alpha=0.55)
    several = np.array([len(values) > 1 for values in scores.values()])  # a single seed has no spread
    axes.errorbar(means[several], places[several], xerr=deviations[several], fmt="none", ecolor=BLACK, capsize=3)
    for place, values in zip(places, scores.values(), strict=True):
        axes.plot(values, np.full(len(values), place), "o", color=BLACK, markersize=2.6, alpha=0.6)
    for place, mean, deviation, spread in zip(places, means, deviations, several, strict=True):
        text = f"{mean:.1f} ± {deviation:.1f}" if spread else f"{mean:.1f}"
        axes.annotate(text, (1.01, place), xycoords=("axes fraction", "data"), va="center", fontsize=8)
    label = f"{metric} ({unit})"
    axes.set(yticks=places, yticklabels=names, xlim=(start, highest + 0.06 * (highest - start)))
    axes.set_xlabel(label if start == 0 else f"{label}; the axis starts at {start:g}")
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    return figure


def mean_and_deviation(scores: Mapping[str, Sequence[float]]) -> tuple[np.ndarray, np.ndarray]:
    """Of every method, (methods,); a single seed has no deviation: 0."""
    for name, values in scores.items():
        if len(values) == 0 or not np.isfinite(values).all():
            raise ValueError(f"scores of {name!r} must be one finite number a seed, got {list(values)}")
    means = np.array([np.mean(values) for values in scores.values()])
    return means, np.array([np.std(values, ddof=1) if len(values) > 1 else 0.0 for values in scores.values()])


def _round_below(lowest: float, highest: float) -> float:
    """A round number below all scores, a third of their spread away at least."""
    spread = max(highest - lowest, 0.01 * abs(highest), 1e-6)
    step = 10.0 ** np.floor(np.log10(spread))
    return float(max(0.0, np.floor((lowest - spread / 3) / step) * step)) if lowest >= 0 else lowest - spread
