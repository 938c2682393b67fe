"""RESULTS.md from run folders: a page whose every number is computed from the summaries of runs that are kept with it.

The page is a template in Markdown with directives in double braces:

    {{table FOLDER METRIC METRIC …}}    one row a loss: mean ± deviation [95% interval] over seeds; the best in bold
    {{tuned FOLDER}}                    the settings that a sweep found, from its sweep.json
    {{value FOLDER/LOSS METRIC}}        one number with its interval, for the text
    {{gap FOLDER/LOSS LOSS METRIC}}     how much the first loss is above the second, with a 95% Welch interval

FOLDER is relative to the folder of kept summaries, FOLDER/LOSS/seed-N/summary.json. A METRIC is one of the test
metrics, or a dotted path into the summary, such as uncertainty.degradation.overall.norm.share_less_certain;
METRIC:Title titles a column.
"""

import json
import math
import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scipy.stats import t as student_t

from .tables import Estimate, Row, best_loss, short_name, summarise

_DIRECTIVE = re.compile(r"\{\{(\w+) ([^}]+)\}\}")
_LEFT_OUT = "best"  # a sweep's reproduced runs stand one folder deeper than a comparison's


def collect(source: Path, kept: Path) -> int:
    """Copy summaries of finished runs with test metrics, and sweeps' findings, out of run folders; how many."""
    found = [path for path in sorted(source.rglob("summary.json")) if "test" in json.loads(path.read_text())]
    for path in [*found, *sorted(source.rglob("sweep.json"))]:
        parts = [part for part in path.relative_to(source).parts if part != _LEFT_OUT]
        target = kept.joinpath(*parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(path.read_text())
    return len(found)


def write(template: Path, kept: Path) -> str:
    """The page: the template with its directives carried out."""
    return _DIRECTIVE.sub(lambda match: _carry_out(match[0], match[1], match[2].split(), kept), template.read_text())


def _carry_out(text: str, name: str, arguments: list[str], kept: Path) -> str:
    if name not in _DIRECTIVES:
        raise ValueError(f"unknown directive {text}: known are {', '.join(_DIRECTIVES)}")
    try:
        return _DIRECTIVES[name](kept, *arguments)
    except (KeyError, TypeError, FileNotFoundError) as error:
        raise ValueError(f"{text} cannot be carried out: {error!r}") from error


def _summaries(folder: Path) -> list[dict[str, Any]]:
    paths = sorted(folder.glob("seed-*/summary.json"))
    if not paths:
        raise FileNotFoundError(f"no seed-*/summary.json in {folder}")
    return [json.loads(path.read_text()) for path in paths]


def _rows(folder: Path, metrics: Sequence[str]) -> list[Row]:
    losses = sorted({path.parents[1] for path in folder.glob("*/seed-*/summary.json")}, key=_natural)
    found = [(loss.name, summary) for loss in losses for summary in _summaries(loss)]
    if not found:
        raise FileNotFoundError(f"no LOSS/seed-*/summary.json in {folder}")
    return summarise([(name, {**s, "test": {m: _measured(s, m) for m in metrics}}) for name, s in found])


def _measured(summary: dict[str, Any], metric: str) -> float:
    found: Any = summary["test"] if "." not in metric else summary
    for key in metric.split("."):
        found = found[key]
    return float(found)


def _natural(path: Path) -> list[Any]:
    """Sorts n_samples-10 behind n_samples-2."""
    return [float(part) if re.fullmatch(r"[\d.]+", part) else part for part in re.split(r"([\d.]+)", path.name)]


# Directives -----------------------------------------------------------------------------------------------------


def _table(kept: Path, folder: str, *columns: str) -> str:
    metrics = [column.partition(":")[0] for column in columns]
    titles = [column.partition(":")[2].replace("_", " ") or short_name(column) for column in columns]
    rows = _rows(kept / folder, metrics)
    header = ["loss", *titles, "seeds", "s/run"]
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    for row in rows:
        cells = [f"**{row.metrics[m]}**" if best_loss(rows, m) == row.loss else str(row.metrics[m]) for m in metrics]
        lines.append("| " + " | ".join([row.loss, *cells, str(row.seeds), f"{row.seconds:.0f}"]) + " |")
    return "\n".join(lines)


def _tuned(kept: Path, folder: str) -> str:
    sweep = json.loads((kept / folder / "sweep.json").read_text())
    lines = ["| loss | trials | validation score | settings |", "|---|---|---|---|"]
    for loss in sweep["losses"]:
        settings = ", ".join(f"{_last(key)} {_short(value)}" for key, value in loss["best"]["values"].items())
        lines.append(f"| {loss['loss']} | {loss['finished']} | {100 * loss['best']['score']:.2f} | {settings} |")
    return "\n".join(lines)


def _last(key: str) -> str:
    return "lr" if key.endswith("Adam.lr") else key.rpartition(".")[2]


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _value(kept: Path, folder: str, metric: str) -> str:
    values = [_measured(summary, metric) for summary in _summaries(kept / folder)]
    estimate = Estimate.of(values)
    assert estimate.half_width is not None
    return f"{100 * estimate.mean:.1f} ± {100 * estimate.half_width:.1f}"


def _gap(kept: Path, folder: str, other: str, metric: str) -> str:
    """Difference of means with Welch's interval: unequal variances, Satterthwaite's degrees of freedom."""
    path = kept / folder
    first, second = ([_measured(s, metric) for s in _summaries(p)] for p in (path, path.parent / other))
    parts = [statistics.variance(values) / len(values) for values in (first, second)]
    freedom = sum(parts) ** 2 / sum(
        part**2 / (len(values) - 1) for part, values in zip(parts, (first, second), strict=True)
    )
    half = float(student_t.ppf(0.975, freedom)) * math.sqrt(sum(parts))
    gap = statistics.fmean(first) - statistics.fmean(second)
    return f"{100 * gap:+.1f} [{100 * (gap - half):+.1f}, {100 * (gap + half):+.1f}]"


_DIRECTIVES: dict[str, Callable[..., str]] = {"table": _table, "tuned": _tuned, "value": _value, "gap": _gap}
