"""Checkpoints that a kill at any moment cannot spoil: written whole or not at all, read without running code."""

import os
import random
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

_KEPT = 2  # the newest may be spoilt by a failing disk: the one before it stays
_REQUIRED = ("epoch", "trunk", "embedder", "loss", "optimizers", "schedulers", "rng", "sampler", "progress", "config")


def write_atomically(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """Write beside the target, flush to disk, rename: a reader sees the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    write_atomically(path, lambda file: _ignore(file.write(text.encode())))


def save(folder: Path, state: dict[str, Any]) -> None:
    """Save `state` as the checkpoint of its epoch and drop all but the newest two."""
    missing = [key for key in _REQUIRED if key not in state]
    assert not missing, missing
    write_atomically(folder / f"epoch-{state['epoch']:05d}.pt", lambda file: torch.save(state, file))
    for old in _newest_first(folder)[_KEPT:]:
        old.unlink()


def load_newest(folder: Path) -> dict[str, Any] | None:
    """The newest readable checkpoint, or None if there is none. A spoilt one is passed over with a warning."""
    for path in _newest_first(folder):
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises half a dozen types for a truncated or foreign file
            warnings.warn(
                f"{path} cannot be read ({type(error).__name__}): falling back to the one before", stacklevel=2
            )
            continue
        missing = [key for key in _REQUIRED if key not in state]
        if missing:
            raise ValueError(f"{path} lacks {', '.join(missing)}: it is not a checkpoint of a whole run")
        return dict(state)
    return None


def rng_state() -> dict[str, Any]:
    """torch's, CUDA's, numpy's and Python's generators, in types that load without unpickling code."""
    name, keys, position, has_gauss, cached = np.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": (str(name), [int(key) for key in keys], int(position), int(has_gauss), float(cached)),
        "python": random.getstate(),
    }


def restore_rng_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))


def _newest_first(folder: Path) -> list[Path]:
    found = [path for path in folder.glob("epoch-*.pt") if re.fullmatch(r"epoch-\d+\.pt", path.name)]
    return sorted(found, reverse=True)


def _ignore(_: object) -> None:
    """For writers whose return value is of no use."""
