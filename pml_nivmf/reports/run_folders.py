"""Run folders, read: configuration, environment, history, summary and what the run left to look at."""

import json
import re
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from .. import yaml_limits

_CONFIG = "config.yaml"
_MOST_BYTES = 10**9  # of arrays, unpacked: a folder may come from anywhere
_SEED_FOLDER = re.compile(r"seed-\d+")
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Run:
    """One finished run. `items` and `pictures` are None where the run left none: see experiments.artifacts."""

    folder: Path

    @cached_property
    def config(self) -> dict[str, Any]:
        path = self.folder / _CONFIG
        try:
            text = path.read_text()
            yaml_limits.check_text(text)
            return dict(yaml.safe_load(text))
        except (yaml.YAMLError, TypeError, ValueError) as error:
            raise ValueError(f"{path} cannot be read: {error}") from error

    @cached_property
    def environment(self) -> dict[str, Any]:
        return dict(_json(self.folder / "environment.json") or {})

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        return list(_json(self.folder / "history.json") or [])

    @cached_property
    def summary(self) -> dict[str, Any] | None:
        """None while the run is not finished."""
        return _json(self.folder / "summary.json")

    @cached_property
    def items(self) -> Arrays | None:
        return _arrays(self.folder / "test_items.npz")

    @cached_property
    def pictures(self) -> Arrays | None:
        return _arrays(self.folder / "thumbnails.npz")

    @property
    def seed(self) -> Any:
        return self.results.get("seed")

    @property
    def results(self) -> dict[str, Any]:
        """The summary of a finished run."""
        assert self.summary is not None
        return self.summary

    @property
    def uncertainty(self) -> dict[str, Any]:
        return dict(self.results.get("uncertainty", {}))

    @property
    def is_whole(self) -> bool:
        return self.summary is not None and "test" in self.summary


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed only."""

    name: str
    runs: list[Run]

    @property
    def first(self) -> Run:
        return self.runs[0]


@dataclass(frozen=True)
class Found:
    """folder: that holds all runs. left_out: how many folders hold no test results, by reason. given: what was asked
    for."""

    folder: Path
    groups: list[Group]
    left_out: dict[str, int]
    given: list[Path]

    @property
    def name(self) -> str:
        """What all runs together are called: a comparison's folder, or a group of seeds."""
        names = [self.folder.name, self.groups[0].name if len(self.groups) == 1 else ""]
        return " ".join(filter(None, names)) or "runs"

    @property
    def runs(self) -> list[Run]:
        return [run for group in self.groups for run in group.runs]

    @property
    def has_spread(self) -> bool:
        """Whether something was run with several seeds."""
        return any(len(group.runs) > 1 for group in self.groups)


def find(paths: Sequence[Path]) -> Found:
    """Of run folders, or folders that hold some at any depth; those without test results are counted, not shown."""
    folders = list(dict.fromkeys(folder.resolve() for path in paths for folder in _run_folders(path)))
    runs = [Run(folder) for folder in folders]
    whole = [run for run in runs if run.is_whole]
    unfinished = sum(run.summary is None for run in runs)
    left_out = {
        "unfinished": unfinished,
        "trials of a sweep, which are not tested": len(runs) - len(whole) - unfinished,
    }
    left_out = {reason: count for reason, count in left_out.items() if count}
    if not whole:
        counts = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
        raise ValueError(f"no finished run with test results in {', '.join(map(str, paths))}: {counts}")
    folder, groups = _grouped(whole)
    return Found(folder, groups, left_out, [path.resolve() for path in paths])


def _run_folders(path: Path) -> list[Path]:
    if (path / _CONFIG).is_file():
        return [path]
    found = sorted((config.parent for config in path.rglob(_CONFIG)), key=_natural)
    if not found:
        raise ValueError(f"{path} is no run folder and holds none: a run folder has a {_CONFIG}")
    return found


def _natural(path: Path) -> list[tuple[int, float, str]]:
    """Sorts seed-10 behind seed-2."""
    parts = re.split(r"(\d+(?:\.\d+)?)", str(path))
    return [(1, float(part), "") if i % 2 else (0, 0.0, part) for i, part in enumerate(parts)]


def _grouped(runs: Iterable[Run]) -> tuple[Path, list[Group]]:
    """By folder without its seed-N, called by what their paths do not share."""
    by_path: dict[Path, list[Run]] = {}
    for run in runs:
        is_seed = _SEED_FOLDER.fullmatch(run.folder.name)
        by_path.setdefault(run.folder.parent if is_seed else run.folder, []).append(run)
    shared = _shared_parent(list(by_path))
    groups = [Group(str(path.relative_to(shared)), members) for path, members in by_path.items()]
    return shared, groups


def _shared_parent(paths: Sequence[Path]) -> Path:
    """The deepest folder that holds all; of a single one, its parent."""
    for candidate in paths[0].parents:
        if all(candidate in path.parents for path in paths):
            return candidate
    return Path(paths[0].anchor)


def _json(path: Path) -> Any:
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def _arrays(path: Path) -> Arrays | None:
    if not path.is_file():
        return None
    try:
        with zipfile.ZipFile(path) as file:
            if sum(entry.file_size for entry in file.infolist()) > _MOST_BYTES:
                raise ValueError(f"it holds more than {_MOST_BYTES:,} bytes")
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive}
    except (ValueError, zipfile.BadZipFile, MemoryError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
