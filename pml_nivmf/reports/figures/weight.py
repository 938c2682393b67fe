"""A metric against the weight ω of the guidance loss (the paper's Fig. 3)."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from .style import BLUE, COLOURS, new_figure, styled


@styled
def metric_against_weight(
    weights: Sequence[float],
    scores: Sequence[Sequence[float]],
    metric: str,
    unit: str = "%",
    baselines: Mapping[str, Sequence[float]] | None = None,
) -> Figure:
    """The mean over seeds with a band of one standard deviation, ω on a log axis.

    weights: ω > 0, (weights,). ω = 0 and the guidance loss alone have no place on a log axis: give them as baselines.
    scores: one row a weight, one number a seed, in `unit`.
    metric: what they are, as in "R@1".
    baselines: by name, one number a seed; drawn as lines across.
    """
    if len(weights) != len(scores) or min(weights) <= 0:
        raise ValueError(
            f"weights must be positive, with one row of scores each, got {list(weights)}, {len(scores)} rows"
        )
    order = np.argsort(weights)
    omega = np.asarray(weights, dtype=float)[order]
    means, deviations = (np.array([f(scores[i]) for i in order]) for f in (np.mean, _deviation))
    figure = new_figure(2.9, 4.9)
    axes = figure.subplots()
    axes.fill_between(omega, means - deviations, means + deviations, color=BLUE, alpha=0.2, linewidth=0)
    axes.plot(omega, means, "o-", color=BLUE, markersize=4, label="joint loss, mean ± deviation")
    for index, (name, values) in enumerate((baselines or {}).items(), start=1):
        mean, deviation = float(np.mean(values)), _deviation(values)
        colour = COLOURS[index % len(COLOURS)]
        axes.axhline(mean, color=colour, linestyle=("--", "-.", ":")[(index - 1) % 3], label=name)
        axes.axhspan(mean - deviation, mean + deviation, color=colour, alpha=0.1, linewidth=0)
    axes.set(xscale="log", xlabel=r"weight $\omega$ of the guidance loss", ylabel=f"{metric} ({unit})")
    axes.legend()
    return figure


def _deviation(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
