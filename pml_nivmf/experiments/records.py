"""What a run leaves behind for people and tools: environment, metric history, record-keeper's files, TensorBoard."""

import importlib.metadata
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from record_keeper import RecordKeeper, RecordWriter
from torch.utils.tensorboard import SummaryWriter

from .. import __version__
from .checkpoint import write_json

_PACKAGES = (
    "torch",
    "pytorch-metric-learning",
    "numpy",
    "torchvision",
    "timm",
    "faiss-cpu",
    "record-keeper",
    "omegaconf",
)


def environment() -> dict[str, Any]:
    """Versions, machine, commit and command: enough to run it again."""
    return {
        "pml_nivmf": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "cuda": torch.version.cuda if torch.cuda.is_available() else None,
        "git_commit": _git_commit(),
        "command": _command(),
    }


def _command() -> str:
    """As one would type it again."""
    program = Path(sys.argv[0])
    name = "pml-nivmf" if program.name in ("__main__.py", "pml-nivmf") else str(program)
    return shlex.join([name, *sys.argv[1:]])


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    """The commit of this package's checkout; None for an installed package, also inside somebody else's repository."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


class HistoryFile:
    """One row of metrics an epoch in history.json: all that a sweep's trial leaves."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._history: list[dict[str, Any]] = []

    def add(self, row: dict[str, Any]) -> None:
        self._history.append(row)
        write_json(self._folder / "history.json", self._history)

    def close(self) -> None:
        """Nothing is open."""


class NoRecords:
    """For ranks that do not write."""

    def add(self, row: dict[str, Any]) -> None:
        """Rank 0 has the same row."""

    def close(self) -> None:
        """Nothing is open."""


class Recorder:
    """Writes one row of metrics an epoch to history.json, record-keeper's CSV and SQLite, and TensorBoard.

    The checkpoint's history is the truth: on resume, whatever a killed run wrote after it is replaced.
    """

    def __init__(self, folder: Path, history: list[dict[str, Any]]):
        self._folder = folder
        self._history: list[dict[str, Any]] = []
        shutil.rmtree(folder / "records", ignore_errors=True)
        shutil.rmtree(folder / "tensorboard", ignore_errors=True)
        self._tensorboard = SummaryWriter(str(folder / "tensorboard"))
        self._keeper = RecordKeeper(self._tensorboard, RecordWriter(str(folder / "records")))
        for row in history:
            self._append(row)
        self._save()

    def add(self, row: dict[str, Any]) -> None:
        self._append(row)
        self._save()

    def close(self) -> None:
        self._tensorboard.close()

    def _append(self, row: dict[str, Any]) -> None:
        self._history.append(row)
        values = {key: value for key, value in row.items() if key != "epoch" and value is not None}
        self._keeper.update_records(values, row["epoch"], parent_name="metrics")

    def _save(self) -> None:
        self._keeper.save_records()
        self._tensorboard.flush()
        write_json(self._folder / "history.json", self._history)
