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
from pytorch_metric_learning.utils.logging_presets import get_record_keeper

from .. import __version__


def environment() -> dict[str, Any]:
    """Return versions, platform, commit and command: what is needed to run it again."""
    is_command = Path(sys.argv[0]).name in ("__main__.py", "pml-nivmf")
    return {
        "pml_nivmf": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {package.name: package.version for package in importlib.metadata.distributions()},
        "cuda": torch.version.cuda if torch.cuda.is_available() else None,
        "git_commit": _git_commit(),
        "command": shlex.join(["pml-nivmf", *sys.argv[1:]]) if is_command else shlex.join(sys.argv),
    }


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
        self._keeper, _, self._tensorboard = get_record_keeper(str(self._folder), str(folder / "tensorboard"))
        for row in history:
            self.add(row)

    def add(self, row: dict[str, Any]) -> None:
        values = {key: value for key, value in row.items() if key != "epoch"}
        try:
            self._keeper.update_records(values, row["epoch"], parent_name="metrics")
            self._keeper.save_records()
        except sqlite3.OperationalError as error:  # a full disk
            raise OSError(f"cannot write {self._folder}: {error}") from error
        self._tensorboard.flush()

    def close(self) -> None:
        self._tensorboard.close()
