"""Score the best weights of finished runs again, without training: other metrics, training images, concatenation."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from ..data import DataSplits
from ..files import write_json, write_text
from ..functional.pairing import unit_vectors
from ..reports.run_folders import Run, read_runs
from .compare import Job
from .config import ConfigError, parse_saved, to_yaml, with_overrides
from .evaluate import score
from .load import build_best
from .records import environment
from .uncertainty import test_and_measure

IMAGES = {"test": None, "train": "training images", "crops": "training crops"}


def rescore(runs: Sequence[Path], overrides: Sequence[str], folder: Path, images: str = "test") -> list[Job]:
    """Evaluate finished runs, or all below the given folders, with a changed configuration or on training images.

    Each result is a run folder in `folder`, without weights, which tables and reports read like any other.
    """
    jobs = []
    for group in read_runs(runs).groups:
        for run in group.runs:
            target = folder / group.name / run.folder.name
            jobs.append(Job(group.name, _rescore(run, overrides, target, images), target))
    return jobs


def _rescore(run: Run, overrides: Sequence[str], target: Path, images: str) -> DictConfig:
    if (target / "best.pt").exists():
        raise ConfigError(f"{target} contains the weights of a run: choose another --dir")
    saved = parse_saved((run.folder / "config.yaml").read_text(), str(run.folder))
    config = with_overrides(saved, overrides, allowed=("evaluation", "dataset", "general"))
    parts = build_best(config, run.folder)
    parts.data = _with_images(parts.data, images)
    results = test_and_measure(parts, target)
    _write(target, config, run.summary | results | {"images": IMAGES[images]}, run.history)
    return config


def _with_images(data: DataSplits, images: str) -> DataSplits:
    """Training images in the place of test images, as they are or as random crops that are always the same."""
    if images == "test":
        return data
    items = copy.copy(data.train if images == "crops" else data.train_plain)
    items.seed = torch.tensor(0)
    return replace(data, test=items, test_degraded=None, test_images=None)


def _write(folder: Path, config: DictConfig, summary: dict[str, Any], history: list[dict[str, Any]]) -> None:
    write_json(folder / "environment.json", environment())
    write_json(folder / "history.json", history)
    write_text(folder / "config.yaml", to_yaml(config))
    write_json(folder / "summary.json", summary)


def concatenate(jobs: Sequence[Job]) -> list[Job]:
    """A further row for jobs that differ in their class split: the concatenated embeddings of all their models."""
    rows: dict[Path, list[Job]] = {}
    for job in jobs:
        label, is_split, _ = job.label.rpartition("-split-")
        if is_split:
            rows.setdefault(job.folder.parents[1] / f"{label}-concatenated" / job.folder.name, []).append(job)
    for folder, members in rows.items():
        _score_together(members, folder)
    return [Job(folder.parent.name, members[0].config, folder) for folder, members in rows.items()]


def _score_together(jobs: Sequence[Job], folder: Path) -> None:
    embeddings = []
    for job in jobs:
        parts = build_best(job.config, job.folder)
        _, raw, labels = score(parts)
        embeddings.append(unit_vectors(raw) if job.config.evaluation.retrieval == "cosine" else raw)
    metrics = parts.calculators["test"].get_accuracy(torch.cat(embeddings, dim=1), labels)
    summaries = [job.summary for job in jobs]
    summary = summaries[0] | {
        "best_epoch": [each["best_epoch"] for each in summaries],
        "seconds": sum(each["seconds"] for each in summaries),
        "test": {name: float(value) for name, value in metrics.items()},
    }
    del summary["uncertainty"]
    _write(folder, jobs[0].config, summary, history=[])
