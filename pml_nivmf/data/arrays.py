"""Reading an .npz of x_train, y_train, x_test, y_test, with an error that names what is wrong in it."""

import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

_LARGE, _MOST_RATIO = 2**30, 100
REQUIRED = ("x_train", "y_train", "x_test", "y_test")
# What reading a truncated or foreign file can raise, from the first byte to the last array.
UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, KeyError, MemoryError)


def load_arrays(path: str | Path, optional: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
    """The required arrays and those of the optional ones that are there; labels are checked, never unpickled."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"npz: no file {path} (an .npz with {', '.join(REQUIRED)} is expected)")
    try:
        arrays = _read(path, optional)
    except UNREADABLE as error:
        raise ValueError(f"npz: cannot read {path}: {error}") from error
    missing = [name for name in REQUIRED if name not in arrays]
    if missing:
        raise ValueError(f"npz: {path} lacks {', '.join(missing)}; it holds {', '.join(arrays) or 'none of them'}")
    for part in ("train", "test"):
        _check_part(path, part, arrays[f"x_{part}"], arrays[f"y_{part}"])
    return arrays


def labels_tensor(labels: np.ndarray) -> Tensor:
    return torch.from_numpy(labels.astype(np.int64))


def _read(path: Path, optional: tuple[str, ...]) -> dict[str, np.ndarray]:
    archive = np.load(path, allow_pickle=False)
    if isinstance(archive, np.ndarray):
        raise ValueError("it is a single array, not an .npz archive")
    with archive:
        _check_size(path, archive.zip.infolist())
        return {name: archive[name] for name in (*REQUIRED, *optional) if name in archive}


def _check_size(path: Path, entries: list[zipfile.ZipInfo]) -> None:
    """Numbers do not shrink a hundredfold: a small file that claims to be huge is made to fill memory."""
    size = sum(entry.file_size for entry in entries)
    if size > _LARGE and size > _MOST_RATIO * path.stat().st_size:
        raise ValueError(f"it would unpack to {size:,} bytes, over {_MOST_RATIO} times its own size")


def _check_part(path: Path, part: str, items: np.ndarray, labels: np.ndarray) -> None:
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ValueError(f"npz: y_{part} of {path} must be a 1-D array of integers, got {labels.dtype} {labels.shape}")
    if items.ndim == 0 or len(items) != len(labels):
        raise ValueError(f"npz: x_{part} {items.shape} and y_{part} {labels.shape} of {path} differ in length")
    if len(labels) == 0:
        raise ValueError(f"npz: x_{part} of {path} is empty")
    if items.dtype.kind not in "fiu":
        raise ValueError(f"npz: x_{part} of {path} must hold numbers, got {items.dtype}")
    if items.dtype.kind == "f" and not np.isfinite(items).all():
        raise ValueError(f"npz: x_{part} of {path} holds NaN or infinity")
