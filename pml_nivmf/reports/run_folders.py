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
_ARRAYS = {
    "test_items.npz": ("labels", "neighbours", "similarity", "correct", "counted", "norm"),
    "thumbnails.npz": ("index", "images", "lowest", "highest", "by_class", "queries"),
}
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Run:
    """A finished run. What the run did not write, or what cannot be read, is empty."""

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

    folder: the deepest folder that contains all groups. skipped: how many run folders are not shown, by reason.
    problems: files that are missing or cannot be read.
    """

    folder: Path
    groups: list[Group]
    skipped: dict[str, int]
    problems: list[str]

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


def read_runs(paths: Sequence[Path]) -> RunSet:
    """Read run folders, or all run folders below the given folders. Runs without test results are only counted."""
    problems: list[str] = []
    folders = dict.fromkeys(folder.resolve() for path in paths for folder in run_folders_in(path))
    results = [_read_run(folder, problems) for folder in folders]
    runs = [result for result in results if isinstance(result, Run)]
    skipped = Counter(result for result in results if isinstance(result, str))
    if not runs:
        reasons = [", ".join(f"{count} {reason}" for reason, count in skipped.items()), *problems]
        raise ValueError(f"no finished run with test results in {', '.join(map(str, paths))}: {'; '.join(reasons)}")
    folder, groups = _group(runs)
    return RunSet(folder, groups, dict(skipped), problems)


def run_folders_in(path: Path) -> list[Path]:
    """`path` itself if it is a run folder, otherwise all run folders below it; seed-10 comes after seed-2."""
    if (path / _CONFIG).is_file():
        return [path]
    folders = sorted((config.parent for config in path.rglob(_CONFIG)), key=_natural)
    if not folders:
        raise ValueError(f"{path} is not a run folder and contains none ({_CONFIG} is missing)")
    return folders


def _read_run(folder: Path, problems: list[str]) -> Run | str:
    """The run, or the reason why it is not shown."""
    if not (folder / "summary.json").exists():
        return "unfinished"
    config, summary = (_read(folder / name, problems) for name in (_CONFIG, "summary.json"))
    if not config or not summary:
        return "unreadable"
    if "test" not in summary:
        return "without test results (trials of a sweep)"
    has_images = bool(lookup(summary, "uncertainty.pictures.images"))
    return Run(
        folder,
        config,
        summary,
        environment=_read(folder / "environment.json", problems),
        history=_read(folder / "history.json", problems, kind=list),
        items=_read(folder / "test_items.npz", problems) if "uncertainty" in summary else {},
        images=_read(folder / "thumbnails.npz", problems) if has_images else {},
    )


def _read(path: Path, problems: list[str], kind: type = dict) -> Any:
    """The contents of the file; if it is missing or broken, an empty `kind` and one more problem."""
    try:
        value = _load(path)
        missing = [name for name in _ARRAYS.get(path.name, ()) if name not in value]
        if missing:
            raise ValueError(f"arrays are missing: {', '.join(missing)}")
        if not isinstance(value, kind):
            raise ValueError(f"expected a {kind.__name__}, got {type(value).__name__}")
        return value
    except FileNotFoundError:
        problems.append(f"{os.path.relpath(path)} is missing")
    except (OSError, ValueError, EOFError, yaml.YAMLError, zipfile.BadZipFile) as error:
        problems.append(f"{os.path.relpath(path)} cannot be read: {' '.join(str(error).split())}")
    return kind()


def _load(path: Path) -> Any:
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as archive:
            return dict(archive)
    return (yaml.safe_load if path.suffix == ".yaml" else json.loads)(path.read_text())


def _natural(path: Path) -> list[float | str]:
    return [float(part) if i % 2 else part for i, part in enumerate(re.split(r"(\d+(?:\.\d+)?)", str(path)))]


def _group(runs: Iterable[Run]) -> tuple[Path, list[Group]]:
    """Group runs by their folder without seed-N; the name of a group is its path below the folder of all groups."""
    by_path: dict[Path, list[Run]] = {}
    for run in runs:
        is_seed = re.fullmatch(r"seed-\d+", run.folder.name)
        by_path.setdefault(run.folder.parent if is_seed else run.folder, []).append(run)
    shared = Path(os.path.commonpath([path.parent for path in by_path]))
    return shared, [Group(str(path.relative_to(shared)), members) for path, members in by_path.items()]
