"""Certainty against right and wrong retrievals."""

from collections.abc import Sequence

import numpy as np

from ...metrics import risk_coverage
from ..figures import norm_histograms, risk_coverage_curves
from ..html import Markup, join, tag
from ..run_folders import Group, Run
from ..svg import plot
from ..tables import short_name
from .section import Column, dig, estimate_table, glossary, percents

_SUFFIXES = ("", "_similarity", "_ppk")
_METRICS = {
    "certainty_auroc": "How well this certainty tells right nearest neighbours from wrong ones: the chance that a "
    "right one is more certain than a wrong one; 50 is what guessing gives.",
    "excess_aurc": "Area under the risk-coverage curve, beyond that of a perfect order: 0 is best.",
    "recall_at_coverage_80": "R@1 of the 80% most certain test items.",
}


SHOWN = tuple(f"{stem}{suffix}" for stem in _METRICS for suffix in _SUFFIXES)


def certainty(groups: Sequence[Group]) -> Markup:
    columns = [_column(name, _METRICS.get(name, "")) for name in SHOWN]
    title = tag("h3", "Does certainty tell right from wrong?")
    table = estimate_table(groups, columns, "Certainty and right retrievals, in percent")
    measured = [group for group in groups if all(run.items is not None for run in group.runs)]
    return join(title, table, glossary(columns), _figures(measured) if measured else None)


def _column(name: str, explained: str) -> Column:
    group, _, score = short_name(name).rpartition(" ")
    return Column(
        name, score.strip("()"), lambda run: dig(run.uncertainty, "certainty", name), explained, group=group, digits=1
    )


def _figures(groups: Sequence[Group]) -> Markup:
    curves = [_curves(groups, score) for score in ("norm", "similarity")]
    first = {group.name: _scored(group.first, "norm") for group in groups}
    alt = f"Histograms of embedding norms of right and wrong retrievals, for {', '.join(first)}."
    caption = "Norms of right and wrong retrievals, of the first seed. Every loss has a scale of norms of its own."
    return join(tag("div", curves, class_="side-by-side"), plot(norm_histograms(first), "norms", alt, caption))


def _curves(groups: Sequence[Group], score: str) -> Markup:
    seeds = {group.name: [_scored(run, score) for run in group.runs] for group in groups}
    areas = {name: [100 * risk_coverage(*seed).area for seed in of_group] for name, of_group in seeds.items()}
    alt = f"Risk against coverage, the most certain by {score} first. AURC: {percents(areas)}."
    caption = f"Answering only the most certain queries, by {score}. A flat line knows nothing; lower is better."
    return plot(risk_coverage_curves(seeds), f"risk-{score}", alt, caption)


def _scored(run: Run, score: str) -> tuple[np.ndarray, np.ndarray]:
    """Certainty and correctness of the queries that have something to find."""
    assert run.items is not None
    values = run.items["norm"] if score == "norm" else run.items["similarity"][:, 0]
    kept = run.items["counted"]
    return values[kept].astype(float), run.items["correct"][kept]
