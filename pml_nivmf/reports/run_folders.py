"""Read run folders: configuration, environment, history, summary, and the arrays for the report."""

import json
import os
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

_CONFIG = "config.yaml"
_NOT_SETTINGS = ("general.seed", "general.run_dir", "general.threads")
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Run:
    """A finished run. What it did not write is empty."""

    folder: Path
    config: dict[str, Any]
    summary: dict[str, Any]
    environment: dict[str, Any]
    history: list[dict[str, Any]]
    items: Arrays
    images: Arrays


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed."""

    name: str
    runs: list[Run]


@dataclass(frozen=True)
class RunSet:
    """All runs of a report.

    paths: as given. folder: the deepest one that contains all groups. skipped: how many run folders are not shown, by
    reason.
    """

    paths: Sequence[Path]
    folder: Path
    groups: list[Group]
    skipped: dict[str, int]

    @property
    def name(self) -> str:
        names = [self.folder.name, self.groups[0].name if len(self.groups) == 1 else ""]
        return " ".join(names).strip() or "runs"

    @property
    def runs(self) -> list[Run]:
        return [run for group in self.groups for run in group.runs]


def lookup(values: Any, path: str) -> Any:
    """The value at a path such as general.epochs, or None if a key is missing."""
    for key in path.split("."):
        values = values.get(key) if isinstance(values, dict) else None
    return values


def differing(configs: Sequence[Any], ignore: Sequence[str] = _NOT_SETTINGS, path: str = "") -> dict[str, list[Any]]:
    """The values in which configurations differ, by dotted key; a missing value is None.

    Objects {ClassName: arguments} of different classes are one difference, not one for each argument.
    """
    if path in ignore or all(config == configs[0] for config in configs):
        return {}
    if not all(isinstance(config, dict) for config in configs):
        return {path: list(configs)}
    names = dict.fromkeys(name for config in configs for name in config)
    if len(names) > 1 and all(len(config) == 1 for config in configs):
        return {path: list(configs)}
    result: dict[str, list[Any]] = {}
    for name in names:
        result |= differing([config.get(name) for config in configs], ignore, f"{path}.{name}".lstrip("."))
    return result


def read_runs(paths: Sequence[Path]) -> RunSet:
    """Read run folders, or all run folders below the given folders. Runs without test results are only counted."""
    folders = dict.fromkeys(folder.resolve() for path in paths for folder in run_folders_in(path))
    results = [_read_run(folder) for folder in folders]
    runs = [result for result in results if isinstance(result, Run)]
    skipped = Counter(result for result in results if isinstance(result, str))
    if not runs:
        reasons = ", ".join(f"{count} {reason}" for reason, count in skipped.items())
        raise ValueError(f"no finished run with test results in {', '.join(map(str, paths))}: {reasons}")
    return RunSet(paths, *_group(runs), dict(skipped))


def run_folders_in(path: Path) -> list[Path]:
    """`path` itself if it is a run folder, otherwise all run folders below it."""
    if (path / _CONFIG).is_file():
        return [path]
    if not (folders := sorted(config.parent for config in path.rglob(_CONFIG))):
        raise ValueError(f"{path} is not a run folder and contains none ({_CONFIG} is missing)")
    return folders


def _read_run(folder: Path) -> Run | str:
    """The run, or the reason why it is not shown."""
    summary = _read(folder / "summary.json")
    if "test" not in summary:
        return "without test results (trials of a sweep)" if summary else "unfinished"
    return Run(
        folder,
        config=_read(folder / _CONFIG),
        summary=summary,
        environment=_read(folder / "environment.json"),
        history=_read(folder / "history.json") or [],
        items=_read(folder / "test_items.npz"),
        images=_read(folder / "thumbnails.npz"),
    )


def _read(path: Path) -> Any:
    """The contents of the file; empty if the run did not write it."""
    if not path.exists():
        return {}
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                return dict(archive)
        return (yaml.safe_load if path.suffix == ".yaml" else json.loads)(path.read_text())
    except (ValueError, EOFError, yaml.YAMLError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def _group(runs: Iterable[Run]) -> tuple[Path, list[Group]]:
    """Group runs by their folder without seed-N; the name of a group is its path below the folder of all groups."""
    by_path: dict[Path, list[Run]] = {}
    for run in runs:
        is_seed = re.fullmatch(r"seed-\d+", run.folder.name)
        by_path.setdefault(run.folder.parent if is_seed else run.folder, []).append(run)
    shared = Path(os.path.commonpath([path.parent for path in by_path]))
    return shared, [Group(str(path.relative_to(shared)), members) for path, members in by_path.items()]
