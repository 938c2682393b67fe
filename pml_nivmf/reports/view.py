"""What the templates of the page show, from runs: numbers, names and figures. The words are in the templates."""

import base64
import io
import json
import math
import os
import shlex
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import yaml
from matplotlib.figure import Figure
from PIL import Image

from . import tables
from .figures import runs as figures
from .figures.style import inline_svg
from .run_folders import Group, Run, RunSet, differing, lookup
from .tables import Row, best_losses, in_percent, ordered_metrics, short_name, summarise

_VERSIONS = ("pml_nivmf", "git_commit", "python", "platform", "cuda")


def view(runs: RunSet) -> dict[str, Any]:
    """The variables and functions of the templates. To add a figure, add its SVG here and its words to a template."""
    rows = summarise([(group.name, run.summary) for group in runs.groups for run in group.runs])
    measured = [group for group in runs.groups if all(run.summary.get("uncertainty") for run in group.runs)]
    degraded = [group for group in measured if all(_kinds(run) for run in group.runs)]
    main = _main_metric(rows)
    return {
        "runs": runs,
        "main": main,
        "metrics": ordered_metrics(rows),
        "selection_note": tables.selection_note(rows),
        "bars": _bars(runs, main),
        "training": _training(runs),
        "measured": measured,
        "certainty": _certainty(measured),
        "degraded": degraded,
        "degradation": _degradation(degraded),
        "with_images": [group for group in runs.groups if group.runs[0].images and group.runs[0].items],
        "distinct": _distinct,
        "environment": environment(runs),
        "commands": commands(runs),
        "differing": differing,
        "described": described,
        "tables": tables,
        "image_uri": image_uri,
        "as_yaml": partial(yaml.safe_dump, sort_keys=False, allow_unicode=True),
    }


def _main_metric(rows: Sequence[Row]) -> dict[str, Any]:
    """The most important metric, usually R@1; its estimates, and the best."""
    metric = ordered_metrics(rows)[0]
    estimates = {row.loss: e for row in rows if (e := row.metrics.get(metric)) and not math.isnan(e.mean)}
    return {"metric": metric, "estimates": estimates, "best": best_losses(rows, metric)}


def _bars(runs: RunSet, main: dict[str, Any]) -> str | None:
    if len(main["estimates"]) < 2 or not in_percent(main["metric"]):
        return None
    values = {g.name: [run.summary["test"].get(main["metric"]) for run in g.runs] for g in runs.groups}
    scores = {name: [100 * value for value in values[name] if value is not None] for name in main["estimates"]}
    return inline_svg(figures.ablation_bars(scores, short_name(main["metric"])), "bars")


def _training(runs: RunSet) -> str | None:
    """Curves of the training loss and of the metric that selected the epoch."""
    if not any(run.history for run in runs.runs):
        return None
    histories = {group.name: [run.history for run in group.runs] for group in runs.groups}
    selected_by = str(runs.runs[0].summary.get("selected_by"))
    split, _, metric = selected_by.partition("_")
    metrics = {"train_loss": "training loss", selected_by: f"{split} {short_name(metric)}"}
    if not metric:  # the last epoch was tested
        del metrics[selected_by]
    return inline_svg(figures.training_curves(histories, metrics), "training")


def _certainty(measured: Sequence[Group]) -> dict[str, Any] | None:
    """Risk against coverage by two certainty scores, and histograms of the norms of the first seeds."""
    groups = [group for group in measured if all(run.items and run.items["counted"].any() for run in group.runs)]
    if not groups:
        return None
    by_norm = {g.name: [_scored(run, run.items["norm"]) for run in g.runs] for g in groups}
    by_similarity = {g.name: [_scored(run, run.items["similarity"][:, 0]) for run in g.runs] for g in groups}
    return {
        "names": list(by_norm),
        "norm": inline_svg(figures.risk_coverage_curves(by_norm), "risk-norm"),
        "similarity": inline_svg(figures.risk_coverage_curves(by_similarity), "risk-similarity"),
        "histograms": inline_svg(figures.norm_histograms({name: seeds[0] for name, seeds in by_norm.items()}), "norms"),
    }


def norms_by_errors_of(baseline: Run, runs: RunSet) -> Figure:
    """Histograms of the norms of each group's first seed, of test items that the baseline retrieves right and wrong."""
    right, methods = _scored(baseline, baseline.items["norm"])[1], {}
    for group in runs.groups:
        items = group.runs[0].items
        if not np.array_equal(items["labels"], baseline.items["labels"]):
            raise ValueError(f"{group.runs[0].folder} and {baseline.folder} have different test items")
        methods[f"{group.name}, retrieval of the baseline"] = (_scored(group.runs[0], items["norm"])[0], right)
    return figures.norm_histograms(methods)


def weight_scores(runs: RunSet) -> dict[float, list[float]]:
    """{weight ω of JointProxyLoss: R@1 in percent of the seeds}; ω is ∞ for ProxyAnchor alone, 0 for EL-nivMF alone."""
    scores: dict[float, list[float]] = {}
    for run in runs.runs:
        ((name, arguments),) = run.config["loss"].items()
        alone = {"NonIsotropicVMFLoss": 0.0, "ProxyAnchorLoss": math.inf}
        if (weight := (arguments or {}).get("weight", alone.get(name))) is not None:
            scores.setdefault(weight, []).append(100 * run.summary["test"]["recall_at_1"])
    return scores


def _scored(run: Run, certainty: np.ndarray) -> figures.Scored:
    """Certainty and correctness of the queries whose class has another item."""
    counted = run.items["counted"].astype(bool)
    return certainty[counted].astype(float), run.items["correct"][counted].astype(bool)


def _degradation(groups: Sequence[Group]) -> str | None:
    """Shares of less certain items against the strength. Features have one strength: the table is enough."""
    kinds = {group.name: [_kinds(run) for run in group.runs] for group in groups}
    strengths = [kind["strength"] for seeds in kinds.values() for seed in seeds for kind in seed.values()]
    if not any(len(of_kind) > 1 for of_kind in strengths):
        return None
    return inline_svg(figures.degradation_curves(kinds), "degradation")


def _kinds(run: Run) -> dict[str, Any]:
    return lookup(run.summary, "uncertainty.degradation.kinds") or {}


def _distinct(groups: Sequence[Group], path: str) -> list[str]:
    """The different values at a path such as config.general.epochs or summary.selected_by, as text."""
    values = [lookup(vars(run), path) for group in groups for run in group.runs]
    return list(dict.fromkeys(described(value) for value in values if value is not None))


def image_uri(pixels: np.ndarray) -> str:
    """Bytes (1 or 3, height, width) as a data URI: PNG for grey images, JPEG for colour, which compresses badly."""
    kind, shaped = ("png", pixels[0]) if len(pixels) == 1 else ("jpeg", np.moveaxis(pixels, 0, -1))
    buffer = io.BytesIO()
    Image.fromarray(shaped).save(buffer, kind, optimize=True, quality=85)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def environment(runs: RunSet) -> dict[str, list[Any]]:
    """The different values of each version, by name."""
    environments = [run.environment for run in runs.runs]
    records = [{name: e.get(name) for name in _VERSIONS} | e.get("packages", {}) for e in environments]
    names = dict.fromkeys(name for record in records for name in record)
    versions = {name: list(dict.fromkeys(record.get(name) for record in records)) for name in names}
    return {name: values for name, values in versions.items() if values != [None]}


def commands(runs: RunSet) -> dict[str, Any]:
    """The commands that made the runs, that repeat one run, and that make this page."""
    recorded = list(dict.fromkeys(run.environment["command"] for run in runs.runs if "command" in run.environment))
    page = shlex.join(["pml-nivmf", "report", *map(os.path.relpath, runs.paths)])
    return {"recorded": recorded, "one_run": "pml-nivmf run config.yaml general.run_dir=again", "page": page}


def described(value: Any) -> str:
    """A setting in a sentence. {ClassName: {argument: value}} becomes ClassName (argument: value)."""
    if not isinstance(value, dict):
        return "–" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    entries = {key: described(entry) for key, entry in value.items()}
    texts = [f"{key} ({text})" if isinstance(value[key], dict) else f"{key}: {text}" for key, text in entries.items()]
    return ", ".join(text.removesuffix(" ()") for text in texts)
