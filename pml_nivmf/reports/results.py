"""Recorded runs, and RESULTS.md, a jinja2 template whose numbers are computed from them.

runs.csv has one row per finished run, tuned.yaml the settings that searches chose. A study is a folder that holds run
folders at any depth. Study, data set, variant and seed identify a row.

The template can use `searches` (tuned.yaml), `galleries` (rows of galleries.csv), `Estimate`, and these functions; a
METRIC is a column of runs.csv or, for a STUDY such as "gallery 20" (method and images), of galleries.csv:

    table("STUDY/DATA", "METRIC", "METRIC:Title", …)      a row for each variant: mean ± deviation [95% interval]
    gap("STUDY/DATA", "FIRST", "SECOND", "METRIC")        how much one variant is above another, with Welch's interval
"""

import csv
import io
import json
import re
import shlex
import statistics
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, StrictUndefined
from scipy import stats

from ..files import write_text
from .tables import Estimate, as_markdown, short_name, summarise

Record = dict[str, str]  # a row, by column
Searches = dict[str, dict[str, Any]]  # by study and data set
_KEY = ("study", "data", "variant", "seed")
_COLUMNS = (*_KEY, "commit", "overrides", "best_epoch", "validation_score", "seconds")  # test metrics follow


def read(folder: Path) -> tuple[list[Record], Searches]:
    return _rows(folder / "runs.csv"), yaml.safe_load((folder / "tuned.yaml").read_text())


def _rows(path: Path) -> list[Record]:
    return list(csv.DictReader(path.read_text().splitlines()))


def write(folder: Path, runs: list[Record], searches: Searches) -> None:
    """All columns that any run has; a run that is recorded again replaces its row, new runs follow the others."""
    rows = {tuple(run[name] for name in _KEY): run for run in runs}
    metrics = sorted({name for run in rows.values() for name in run} - set(_COLUMNS))
    text = io.StringIO()
    writer = csv.DictWriter(text, [*_COLUMNS, *metrics], restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows.values())
    write_text(folder / "runs.csv", text.getvalue())
    title = "# What searches chose, by study, data set and loss; written by `pml-nivmf results --collect`\n"
    tuned = yaml.safe_dump(searches, default_flow_style=None, sort_keys=False, width=200)
    write_text(folder / "tuned.yaml", title + tuned)


def collect_runs(study: Path) -> list[Record]:
    """A record of each finished run with test metrics, which trials of a search do not have."""
    summaries = {path.parent: json.loads(path.read_text()) for path in sorted(study.rglob("summary.json"))}
    return [_record(study.resolve().name, run, summary) for run, summary in summaries.items() if "test" in summary]


def collect_tuned(study: Path) -> dict[str, Any]:
    """{data: search with all trials and the best settings of each loss}, from every sweep.json of the study."""
    tuned = {}
    for path in sorted(study.rglob("sweep.json")):
        sweep = json.loads(path.read_text())
        search = {key: sweep[key] for key in ("experiment", "sampler", "seeds_per_trial", "score")}
        losses = {
            loss["loss"]: {"trials": loss["finished"], **{key: loss["best"][key] for key in ("score", "values")}}
            | ({"finals": list(loss["finals"].values())} if loss.get("finals") else {})
            | {"tried": loss["trials"]}
            for loss in sweep["losses"]
            if loss["best"]
        }
        tuned[_data_name(next(path.parent.rglob("config.yaml")))] = search | {"losses": losses}
    return tuned


def _record(study: str, run: Path, summary: dict[str, Any]) -> Record:
    environment = json.loads((run / "environment.json").read_text())
    degradation = summary.get("uncertainty", {}).get("degradation", {})
    values = {
        "study": study,
        "data": _data_name(run / "config.yaml"),
        "variant": (run.parents[1] if run.parent.name == "best" else run.parent).name,  # sweeps: VARIANT/best/seed-N
        "seed": summary["seed"],
        "commit": (environment["git_commit"] or "")[:7],
        "overrides": _overrides(environment["command"]),
        **{name: summary[name] for name in ("best_epoch", "validation_score", "seconds")},
        **summary["test"],
        "degraded_smaller_norm": degradation.get("overall", {}).get("norm", {}).get("share_less_certain"),
        "degraded_recall_at_1": degradation.get("overall", {}).get("recall_at_1"),
    }
    return {name: "" if value is None else str(value) for name, value in values.items()}


def _overrides(command: str) -> str:
    """The overrides in the run's command, with all values of `--vary`; paths without their folders."""
    overrides = [word for word in shlex.split(command) if "=" in word and not word.startswith("-")]
    return shlex.join(re.sub(r"=\S*/", "=", word) for word in overrides)


def _data_name(config: Path) -> str:
    """The name of the user's file or folder, or else that of the class in lower case."""
    dataset = yaml.safe_load(config.read_text())["dataset"]
    name, arguments = next((key, value) for key, value in dataset.items() if key[0].isupper())  # not `splits`
    path = arguments.get("npz") or (name == "ImageFolder" and arguments["root"])
    return Path(path).stem if path else str(name).lower()


def write_page(folder: Path) -> str:
    """The folder's template, rendered with its recorded runs."""
    runs, searches = read(folder)
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True)
    template = environment.from_string((folder / "RESULTS.template.md").read_text())
    galleries = _rows(folder / "galleries.csv")
    whole = [row for row in galleries if row["queries"] == "whole"]
    runs += [row | {"study": f"{row['method']} {row['shots']}", "variant": row["loss"]} for row in whole]
    functions = {"table": partial(_table, runs), "gap": partial(_gap, runs), "Estimate": Estimate}
    return template.render(functions, searches=searches, galleries=galleries)


def _table(runs: list[Record], place: str, *columns: str) -> str:
    names = [column.partition(":") for column in columns]
    titles = {metric: title or short_name(metric) for metric, _, title in names}
    summaries = []
    for run in _runs_in(runs, place):
        test = {name: float(run[name] or "nan") for name in titles}
        summaries.append((run["variant"], {"seconds": float(run["seconds"]), "test": test}))
    return as_markdown(summarise(summaries), titles)


def _gap(runs: list[Record], place: str, first: str, second: str, metric: str) -> str:
    a, b = ([float(run[metric]) for run in _runs_in(runs, place, variant)] for variant in (first, second))
    interval = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    gap = statistics.fmean(a) - statistics.fmean(b)
    return f"{100 * gap:+.1f} [{100 * interval.low:+.1f}, {100 * interval.high:+.1f}]"


def _runs_in(runs: list[Record], place: str, variant: str | None = None) -> list[Record]:
    chosen = [run for run in runs if place == f"{run['study']}/{run['data']}" and variant in (None, run["variant"])]
    if not chosen:
        raise ValueError(f"RESULTS.template.md: there are no runs of {variant or 'any loss'} in {place}")
    return chosen
