"""What a run records for people and tools: the environment, record-keeper's CSV and SQLite, TensorBoard."""

import importlib.metadata
import platform
import shlex
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from record_keeper import RecordKeeper, RecordWriter
from torch.utils.tensorboard import SummaryWriter

from .. import __version__


def environment() -> dict[str, Any]:
    """Return versions, platform, commit and command: what is needed to run it again."""
    return {
        "pml_nivmf": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {package.name: package.version for package in importlib.metadata.distributions()},
        "cuda": torch.version.cuda if torch.cuda.is_available() else None,
        "git_commit": _git_commit(),
        "command": _command(),
    }


def _command() -> str:
    program = Path(sys.argv[0])
    name = "pml-nivmf" if program.name in ("__main__.py", "pml-nivmf") else str(program)
    return shlex.join([name, *sys.argv[1:]])


def _git_commit() -> str | None:
    """Return the commit of this package's checkout, or None for an installed package."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists() or not shutil.which("git"):  # site-packages may be in another repository
        return None
    result = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
    return result.stdout.strip() or None


class Recorder:
    """Writes the metrics of each epoch to record-keeper's CSV and SQLite and to TensorBoard.

    The checkpoint's history is authoritative: on resume, what a killed run wrote after it is replaced.
    """

    def __init__(self, folder: Path, history: list[dict[str, Any]]):
        self._folder = folder / "records"
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.rmtree(folder / "tensorboard", ignore_errors=True)
        self._tensorboard = SummaryWriter(str(folder / "tensorboard"))
        self._keeper = RecordKeeper(self._tensorboard, RecordWriter(str(self._folder)))
        for row in history:
            self.add(row)

    def add(self, row: dict[str, Any]) -> None:
        values = {key: value for key, value in row.items() if key != "epoch" and value is not None}
        try:
            self._keeper.update_records(values, row["epoch"], parent_name="metrics")
            self._keeper.save_records()
        except sqlite3.OperationalError as error:  # a full disk
            raise OSError(f"cannot write {self._folder}: {error}") from error
        self._tensorboard.flush()

    def close(self) -> None:
        self._tensorboard.close()
