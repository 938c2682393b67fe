"""Loss and validation score over the epochs."""

from typing import Any

from ..figures import training_curves
from ..html import Markup, join, tag
from ..run_folders import Found
from ..svg import plot
from ..tables import short_name
from .section import Section


def training(found: Found) -> Section | None:
    histories = {group.name: [_measured(run.history) for run in group.runs] for group in found.groups}
    metrics = {name: label for name, label in _metrics(found).items() if all(_has(h, name) for h in histories.values())}
    if not metrics:
        return None
    alt = f"{' and '.join(metrics.values())} over the epochs, for {', '.join(histories)}."
    seeds = "Mean over seeds, the band is one standard deviation. " if found.has_spread else ""
    kinds = (
        " Training losses of different kinds have different units: compare their shape, not their height."
        if len(found.groups) > 1
        else ""
    )
    caption = f"{seeds}The mark is the best epoch.{kinds}"
    return Section(
        "Training", join(plot(training_curves(histories, metrics), "training", alt, caption), _chosen(found))
    )


def _metrics(found: Found) -> dict[str, str]:
    """The loss, and what chose the epoch."""
    chosen = dict.fromkeys(str(run.results.get("selected_by")) for run in found.runs)
    named = {name: f"validation {short_name(name.removeprefix('validation_'))}" for name in chosen}
    return {"train_loss": "training loss", **dict(list(named.items())[:1])}


def _measured(history: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Without the values that were not a number."""
    return [{key: value for key, value in row.items() if value is not None} for row in history]


def _has(histories: list[list[dict[str, float]]], metric: str) -> bool:
    return any(metric in row for history in histories for row in history)


def _chosen(found: Found) -> Markup:
    epochs = {g.name: ", ".join(str(run.results.get("best_epoch")) for run in g.runs) for g in found.groups}
    return tag("p", "Epochs that validation chose: ", "; ".join(f"{name} {text}" for name, text in epochs.items()), ".")
