"""Certainty of images that were made worse."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..figures import ablation_bars, degradation_curves
from ..html import Markup, join, tag
from ..run_folders import Group, Run
from ..svg import plot
from .images import degraded_examples
from .section import Column, dig, estimate_table, glossary, percents

_SCORES = {"norm": "norm", "similarity": "similarity", "ppk": "PPK"}


def degradation(groups: Sequence[Group]) -> Markup:
    title = tag("h3", "Is the model less certain of degraded images?")
    measured = [group for group in groups if all(_kinds(run) for run in group.runs)]
    reasons = {dig(run.uncertainty, "degradation", "left_out") for group in groups for run in group.runs}
    notes = [tag("p", f"Not measured: {reason}.") for reason in sorted(filter(None, reasons))]
    if not measured:
        return join(title, notes)
    columns = [_CLEAN, _DEGRADED, *map(_less_certain, _SCORES), *map(_spearman, _SCORES)]
    items = dig(measured[0].first.uncertainty, "degradation", "items")
    caption = (
        f"{items} test items, clean and degraded ({', '.join(_kinds(measured[0].first))}); mean over all strengths; "
        "R@1 and less certain in percent"
    )
    table = estimate_table(measured, columns, caption)
    return join(title, table, glossary(columns), notes, _figures(measured), _examples(measured))


def _kinds(run: Run) -> dict[str, Any]:
    return dict(dig(run.uncertainty, "degradation", "kinds") or {})


def _mean_recall(run: Run) -> float | None:
    values = [value for kind in _kinds(run).values() for value in kind["recall_at_1"] if value is not None]
    return float(np.mean(values)) if values else None


_CLEAN = Column(
    "clean",
    "clean",
    lambda run: dig(run.uncertainty, "degradation", "recall_at_1"),
    "R@1 of these items among clean ones, clean and degraded themselves.",
    group="R@1",
    digits=1,
)
_DEGRADED = Column("degraded", "degraded", _mean_recall, group="R@1", digits=1)


def _less_certain(score: str) -> Column:
    return Column(
        f"less_certain_{score}",
        _SCORES[score],
        lambda run: dig(run.uncertainty, "degradation", "overall", score, "share_less_certain"),
        "The share of items that are less certain when degraded; 50 is chance." if score == "norm" else "",
        group="less certain",
        digits=1,
    )


def _spearman(score: str) -> Column:
    text = "Rank correlation of strength and certainty: −1 where every stronger degradation makes less certain."
    return Column(
        f"spearman_{score}",
        _SCORES[score],
        lambda run: dig(run.uncertainty, "degradation", "overall", score, "spearman"),
        text if score == "norm" else "",
        percent=False,
        ranked=False,
        group="Spearman",
    )


def _figures(groups: Sequence[Group]) -> list[Markup]:
    """One for each set of kinds and strengths: data sets may bring degraded items of their own."""
    by_kinds: dict[str, list[Group]] = {}
    for group in groups:
        strengths = {name: kind["strength"] for name, kind in _kinds(group.first).items()}
        by_kinds.setdefault(repr(strengths), []).append(group)
    return [_figure(alike, f"degradation-{index}") for index, alike in enumerate(by_kinds.values())]


def _figure(groups: Sequence[Group], name: str) -> Markup:
    strengths = {kind: values["strength"] for kind, values in _kinds(groups[0].first).items()}
    column = _less_certain("norm")
    overall = {group.name: [100 * (column.value(run) or 0.0) for run in group.runs] for group in groups}
    alt = f"Share of items whose norm is lower when degraded. Overall: {percents(overall)}."
    if all(len(values) == 1 for values in strengths.values()):  # a point is no curve
        caption = "Items whose norm is lower when degraded; 50% is chance. Mean, deviation, and every seed as a dot."
        return plot(ablation_bars(overall, "less certain", from_zero=True), name, alt, caption)
    shares = {group.name: [_shares(run) for run in group.runs] for group in groups}
    caption = "Images whose norm is lower than the clean image's: 100% sees all damage; dotted is chance."
    return plot(degradation_curves(shares, strengths), name, alt, caption)


def _shares(run: Run) -> dict[str, list[float]]:
    return {name: kind["norm"]["share_less_certain"] for name, kind in _kinds(run).items()}


def _examples(groups: Sequence[Group]) -> Markup | None:
    """What the strengths look like."""
    pictures = next((run.pictures for group in groups for run in group.runs if run.pictures is not None), None)
    return None if pictures is None else degraded_examples(pictures)
