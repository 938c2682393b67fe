"""Arrays computed once and kept on disk: a file is there whole or not at all, and an unreadable one is made anew."""

import os
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

from .arrays import UNREADABLE

Arrays = dict[str, np.ndarray]


def user_cache_dir() -> Path:
    """$XDG_CACHE_HOME/pml_nivmf, by default ~/.cache/pml_nivmf."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pml_nivmf"


def cached_arrays(path: Path, names: tuple[str, ...], compute: Callable[[], Arrays]) -> Arrays:
    """The arrays kept in `path`, or computed and kept there; a folder that cannot be written to costs a warning."""
    arrays = _read(path, names)
    if arrays is not None:
        return arrays
    arrays = compute()
    try:
        _write(path, arrays)
    except OSError as error:
        warnings.warn(f"nothing is cached, {path} cannot be written: {error}", UserWarning, stacklevel=2)
    return arrays


def _read(path: Path, names: tuple[str, ...]) -> Arrays | None:
    """None where the file is absent, truncated or damaged (zip's checksums tell)."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in names}
    except (*UNREADABLE, TypeError):
        return None


def _write(path: Path, arrays: Arrays) -> None:
    """Beside the target under a name of its own, then renamed: readers and rival writers see whole files only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
