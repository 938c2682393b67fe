"""Checkpoints that a kill at any moment cannot spoil: written whole or not at all, read without running code."""

import json
import math
import os
import random
import re
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

_PARTIAL = ".partial"
_KEPT = 2  # the newest may be spoilt by a failing disk: the one before it stays
_REQUIRED = ("epoch", "trunk", "embedder", "loss", "optimizers", "schedulers", "rng", "sampler", "progress", "config")


def write_atomically(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """Write beside the target, flush to disk, rename: a reader sees the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}{_PARTIAL}")
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def remove_partial(folder: Path) -> None:
    """What writers left that were killed; call it only where no other process can be writing."""
    for left_over in folder.rglob(f".*{_PARTIAL}"):
        left_over.unlink()


def write_text(path: Path, text: str) -> None:
    write_atomically(path, lambda file: _ignore(file.write(text.encode())))


def write_json(path: Path, value: Any) -> None:
    """Valid JSON, whatever was measured: see `finite`."""
    write_text(path, json.dumps(finite(value), indent=1, allow_nan=False))


def finite(value: Any) -> Any:
    """The same with None for NaN and infinities, which JSON has no word for."""
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def save(folder: Path, state: dict[str, Any]) -> None:
    """Save `state` as the checkpoint of its epoch and drop all but the newest two."""
    missing = [key for key in _REQUIRED if key not in state]
    assert not missing, missing
    write_atomically(folder / f"epoch-{state['epoch']:05d}.pt", lambda file: torch.save(state, file))
    for old in _newest_first(folder)[_KEPT:]:
        old.unlink()


def load_weights(path: Path) -> dict[str, Any]:
    """What `torch.save` wrote, without running code; an error that says so if it is anything else."""
    try:
        return dict(_load(path))
    except FileNotFoundError:
        raise ValueError(f"{path} is missing: start the run again with --overwrite") from None
    except Exception as error:  # torch raises half a dozen types for a truncated or foreign file
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{path} cannot be read ({reason}): start the run again with --overwrite") from error


def load_newest(folder: Path) -> dict[str, Any] | None:
    """The newest readable checkpoint, or None if there is none. A spoilt one is passed over with a warning."""
    for path in _newest_first(folder):
        try:
            state = _load(path)
        except Exception as error:  # torch raises half a dozen types for a truncated or foreign file
            warnings.warn(
                f"{path} cannot be read ({type(error).__name__}): falling back to the one before", stacklevel=2
            )
            continue
        if not isinstance(state, dict):
            raise ValueError(f"{path} holds a {type(state).__name__}: it is not a checkpoint of a whole run")
        missing = [key for key in _REQUIRED if key not in state]
        if missing:
            raise ValueError(
                f"{path} lacks {', '.join(missing)}: it is not a checkpoint of a whole run. "
                "Remove it to go on from the one before, or start again with --overwrite"
            )
        return dict(state)
    return None


def _load(path: Path) -> Any:
    """Without running code, and no larger than its file: torch.save compresses nothing, but torch.load unpacks."""
    with zipfile.ZipFile(path) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > path.stat().st_size:
            raise ValueError("it holds more than its own size, which torch.save does not write")
    return torch.load(path, map_location="cpu", weights_only=True)


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
        torch.cuda.set_rng_state_all(state["cuda"][: torch.cuda.device_count()])  # there may be fewer GPUs now
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))


def _newest_first(folder: Path) -> list[Path]:
    found = [path for path in folder.glob("epoch-*.pt") if re.fullmatch(r"epoch-\d+\.pt", path.name)]
    return sorted(found, reverse=True)


def _ignore(_: object) -> None:
    """For writers whose return value is of no use."""
