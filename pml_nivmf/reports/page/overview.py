"""What was compared and how, and what came out in a sentence."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..html import Markup, join, tag
from ..run_folders import Found, Run
from ..tables import Estimate, short_name
from .section import Section, dig, metric_column
from .values import described, flow

_MAIN = ("recall_at_1", "precision_at_1", "mean_average_precision_at_r")


def overview(found: Found) -> Section:
    title = "What was compared" if len(found.groups) > 1 else "What was run"
    return Section(title, join(_warning(found), _sentence(found), _facts(found), _left_out(found)))


def main_metric(runs: Sequence[Run]) -> str:
    """What the runs are foremost compared by: R@1 if they all have it."""
    shared = [name for name in runs[0].results["test"] if all(name in run.results["test"] for run in runs)]
    return next((name for name in _MAIN if name in shared), (shared or list(runs[0].results["test"]))[0])


def _sentence(found: Found) -> Markup | None:
    """The best mean, and whose intervals reach into its own."""
    metric = main_metric(found.runs)
    column = metric_column(metric)
    estimates = {g.name: Estimate.of([column.value(r) for r in g.runs], column.percent) for g in found.groups}
    estimates = {name: e for name, e in estimates.items() if e.mean == e.mean}
    if not estimates:
        return None
    best = max(estimates, key=lambda name: estimates[name].mean)
    title = f"{'Highest ' if len(estimates) > 1 else ''}{short_name(metric)} on the test classes: "
    overlap = _overlap(best, estimates) if len(estimates) > 1 else None
    return tag(
        "p", title, tag("strong", best, " ", str(estimates[best]).replace("-", "−")), ". ", overlap, class_="lead"
    )


def _overlap(best: str, estimates: dict[str, Estimate]) -> str:
    top = estimates[best]
    if any(e.half_width is None for e in estimates.values()):
        return "With a single seed there is no interval: small differences mean little."
    near = [name for name, e in estimates.items() if name != best and _high(e) >= _low(top)]
    if not near:
        return "No other interval reaches into its own."
    return f"Intervals that reach into its own, so that the order is open: {', '.join(near)}."


def _low(estimate: Estimate) -> float:
    return estimate.mean - (estimate.half_width or 0)


def _high(estimate: Estimate) -> float:
    return estimate.mean + (estimate.half_width or 0)


def _facts(found: Found) -> Markup:
    configs = [run.config for run in found.runs]

    def of(*keys: str) -> str:
        values = list(dict.fromkeys(described(dig(config, *keys)) for config in configs))
        return values[0] if len(values) == 1 else "differs, see Configuration"

    select = {str(run.results.get("selected_by", "")).removeprefix("validation_") for run in found.runs}
    facts: dict[str, str] = {
        "Compared" if len(found.groups) > 1 else "Run": f"{', '.join(g.name for g in found.groups)}; {_seeds(found)}",
        "Data": of("dataset"),
        "Test": _test_set(found.runs[0].items),
        "Model": f"{of('model', 'trunk')}, embeddings of {of('model', 'embedding_size')} dimensions",
        "Training": f"{_epochs(of('general', 'epochs'))}, batches of {of('general', 'batch_size')}, "
        f"{of('optimizers', 'model')}, warm start: {of('schedule', 'warm_start')}",
        "Epoch chosen by": f"{', '.join(short_name(s) for s in sorted(select))} on validation classes, which are held "
        "out of the training classes; the test set has no say",
        "Retrieval": f"by {of('evaluation', 'retrieval')}, every test item against all others",
        "Numbers": "mean ± standard deviation over seeds [95% interval of the mean, Student's t]"
        if found.has_spread
        else "of one seed: how far they vary from seed to seed is not known",
    }
    return tag("dl", [join(tag("dt", key), tag("dd", value)) for key, value in facts.items() if value], class_="facts")


def _seeds(found: Found) -> str:
    seeds = [len(group.runs) for group in found.groups]
    count = str(seeds[0]) if len(set(seeds)) == 1 else f"{min(seeds)} to {max(seeds)}"
    return f"{count} seed{'s' * (count != '1')}{' each' * (len(seeds) > 1)}"


def _epochs(count: str) -> str:
    return f"{count} epoch{'s' * (count != '1')}" if count.isdecimal() else f"epochs: {count}"


def _test_set(items: dict[str, np.ndarray] | None) -> str:
    if items is None:
        return ""
    return f"{len(items['labels']):,} items of {len(np.unique(items['labels'])):,} classes that training never saw"


def _warning(found: Found) -> Markup | None:
    data: list[Any] = list(dict.fromkeys(flow(run.config.get("dataset")) for run in found.runs))
    if len(data) == 1:
        return None
    return tag(
        "p",
        f"These runs are on {len(data)} different data sets or splits: their numbers cannot be compared directly.",
        class_="warning",
        role="note",
    )


def _left_out(found: Found) -> Markup | None:
    if not found.left_out:
        return None
    said = ", ".join(f"{count} {reason}" for reason, count in found.left_out.items())
    return tag("p", f"Run folders that are not shown: {said}.")
