"""The table of test metrics, and its main column as a figure."""

from dataclasses import replace

from ..figures import ablation_bars
from ..html import Markup, join
from ..run_folders import Found, Run
from ..svg import plot
from ..tables import Estimate, in_percent, ordered_metrics, short_name, summarise
from .certainty import SHOWN
from .overview import main_metric
from .section import Column, Section, estimate_table, glossary, metric_column

_EXPLAINED = {
    "recall_at_1": "The share of test items whose nearest neighbour is of their class.",
    "mean_average_precision_at_r": "Mean average precision among the R nearest, R the number of items of the class.",
    "NMI": "Normalised mutual information of k-means clusters and classes.",
    "certainty_auroc": "How well the norm tells right nearest neighbours from wrong ones; 50 is chance.",
}


def results(found: Found) -> Section:
    rows = summarise([(group.name, run.results) for group in found.groups for run in group.runs])
    columns = [_explained(metric_column(metric)) for metric in ordered_metrics(rows) if not _elsewhere(metric, found)]
    seconds = Column(
        "seconds",
        "s/run",
        _seconds,
        "Seconds of training and validation.",
        percent=False,
        ranked=False,
        digits=1,
        interval=False,
    )
    spread = ", mean ± deviation [95% interval]" if found.has_spread else ""
    best = "; the best in bold" if len(found.groups) > 1 else ""
    table = estimate_table(found.groups, [*columns, seconds], f"Test metrics in percent{spread}{best}")
    return Section("Results", join(table, glossary([*columns, seconds]), _bars(found)))


def _elsewhere(metric: str, found: Found) -> bool:
    """Whether the section on uncertainty has it."""
    return metric in SHOWN and all(run.uncertainty for run in found.runs)


def _explained(column: Column) -> Column:
    k = column.key.removeprefix("recall_at_")
    text = f"The share of test items with at least one of their class among the {k} nearest." if k.isdecimal() else ""
    return replace(column, explained=_EXPLAINED.get(column.key, text))


def _seconds(run: Run) -> float | None:
    value = run.results.get("seconds")
    return None if value is None else float(value)


def _bars(found: Found) -> Markup | None:
    """None for a single group, which a figure says nothing more of."""
    metric = main_metric(found.runs)
    values = {g.name: [r.results["test"].get(metric) for r in g.runs] for g in found.groups}
    scores = {name: [100 * v for v in over_seeds if v is not None] for name, over_seeds in values.items()}
    scores = {name: over_seeds for name, over_seeds in scores.items() if over_seeds}
    if len(scores) < 2 or not in_percent(metric):
        return None
    title = short_name(metric)
    alt = f"Bars of {title}: " + "; ".join(f"{n} {Estimate.of([v / 100 for v in s])}" for n, s in scores.items())
    caption = f"{title} on the test classes: mean over seeds, standard deviation, and every seed as a dot."
    return plot(ablation_bars(scores, title), "bars", alt, caption)
