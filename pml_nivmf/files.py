"""Write files whole or not at all."""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

_PARTIAL = ".partial"


def write_atomically(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Write to a temporary file beside `path`, flush it to disk and rename it.

    A reader sees the old file or the new one, never a part. The temporary file is removed if `write` fails.
    """
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
    """Remove the temporary files of killed processes. No other process may be writing to `folder`."""
    for temporary in folder.rglob(f".*{_PARTIAL}"):
        temporary.unlink()


def write_text(path: Path, text: str) -> None:
    write_atomically(path, lambda file: file.write(text.encode()))


def write_json(path: Path, value: Any) -> None:
    """Write valid JSON: NaN and infinities become null."""
    write_text(path, json.dumps(finite(value), indent=1, allow_nan=False))


def read_json(path: Path) -> Any:
    """The content, or None if there is no such file."""
    return json.loads(path.read_text()) if path.exists() else None


def finite(value: Any) -> Any:
    """The same value with None in place of NaN and infinities, which JSON cannot hold."""
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
