"""What a sweep found: sweep.json, sweep.md, sweep.png and sweep.svg, and a table for the terminal."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from ...reports import tables
from ...reports.tables import Row
from ..checkpoint import write_text
from ..terminal import show_comparison, show_sweep
from .plan import LossPlan, Plan
from .search import Result
from .study import seconds_of, slot_of, status_of


def describe(plan: Plan) -> str:
    """What `--dry-run` prints."""
    seeds = plan.settings.seeds
    lines = [f"{plan.name}: {plan.settings.sampler}, pruner {plan.settings.pruner}, {seeds} seed(s) a trial"]
    for loss in plan.losses:
        lines.append(f"{loss.study}: {loss.count} trials, {loss.count * seeds} runs")
        lines += [f"  {key:<48} {parameter}" for key, parameter in loss.space.items()]
        if plan.settings.sampler == "tpe" and loss.fixed[0]:
            lines.append("  first trial: " + ", ".join(f"{key}={value}" for key, value in loss.fixed[0].items()))
    lines.append(f"{sum(loss.count for loss in plan.losses) * seeds} runs in all")
    return "\n".join(lines)


def report(plan: Plan, results: Sequence[Result], rows: Sequence[Row], folder: Path) -> None:
    """Save everything in `folder` and show the tables."""
    found = save(plan, results, rows, folder)
    lines = [
        {"loss": loss["loss"], "trials": _counts(loss), "score": _score(loss), "settings": "\n".join(_settings(loss))}
        for loss in found["losses"]
    ]
    show_sweep(f"{plan.name}: best {found['score']} in percent", lines)
    if rows:
        show_comparison(f"{plan.name}, best settings, {rows[0].seeds} new seeds", rows)
    print(f"trials, tables and plot in {folder}")


def save(plan: Plan, results: Sequence[Result], rows: Sequence[Row], folder: Path) -> dict[str, Any]:
    """Tables and figure; returns what sweep.json holds."""
    from .plot import plot  # matplotlib takes a second to import

    found = as_json(plan, results, rows)
    write_text(folder / "sweep.json", json.dumps(found, indent=1))
    write_text(folder / "sweep.md", as_markdown(found, rows) + "\n")
    plot(found, folder)
    return found


def as_json(plan: Plan, results: Sequence[Result], rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "experiment": plan.name,
        "score": f"validation_{plan.select}",
        "sampler": plan.settings.sampler,
        "pruner": plan.settings.pruner,
        "seeds_per_trial": plan.settings.seeds,
        "losses": [_loss_json(result) for result in results],
        "reproduced": tables.as_json(rows),
    }


def _loss_json(result: Result) -> dict[str, Any]:
    statuses = [status_of(trial) for trial in result.trials]
    best = result.best
    return {
        "loss": result.plan.name,
        "space": {key: {p.kind: list(p.values)} for key, p in result.plan.space.items()},
        "finished": len(statuses),
        **{status: statuses.count(status) for status in ("complete", "pruned", "diverged")},
        "seconds": round(sum(seconds_of(trial) for trial in result.trials), 2),
        "best": None if best is None else {"trial": best.number, "score": best.value, "values": result.best_values},
        "trials": [_trial_json(trial, result.plan) for trial in result.trials],
    }


def _trial_json(trial: FrozenTrial, loss: LossPlan) -> dict[str, Any]:
    """`score` of complete trials only; the highest score that a pruned one had reached is `reached`."""
    scores = list(trial.intermediate_values.values())
    return {
        "trial": trial.number,
        "slot": slot_of(trial),
        "status": status_of(trial),
        "score": trial.value if status_of(trial) == "complete" else None,
        "reached": max(scores) if scores and status_of(trial) == "pruned" else None,
        "values": loss.values(trial.params),
        "seconds": seconds_of(trial),
    }


def as_markdown(found: dict[str, Any], rows: Sequence[Row]) -> str:
    lines = [
        f"Sweep of {found['experiment']} by {found['sampler']}, scores are {found['score']} in percent, "
        f"the median of {found['seeds_per_trial']} run(s) a trial.",
        "",
        "| loss | trials | pruned | diverged | best score | best settings | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for loss in found["losses"]:
        cells = [loss["loss"], *(str(loss[key]) for key in ("finished", "pruned", "diverged"))]
        cells += [_score(loss), "<br>".join(_settings(loss)), f"{loss['seconds']:.0f}"]
        lines.append("| " + " | ".join(cells) + " |")
    if rows:
        lines += ["", f"Test metrics of the best settings, {rows[0].seeds} new seeds:", "", tables.as_markdown(rows)]
    return "\n".join(lines)


def _counts(loss: dict[str, Any]) -> str:
    others = [f"{loss[key]} {key}" for key in ("pruned", "diverged") if loss[key]]
    return "\n".join([str(loss["finished"]), *others])


def _score(loss: dict[str, Any]) -> str:
    return "none" if loss["best"] is None else f"{100 * loss['best']['score']:.2f}"


def _settings(loss: dict[str, Any]) -> list[str]:
    values = {} if loss["best"] is None else loss["best"]["values"]
    return [f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}" for key, value in values.items()]
