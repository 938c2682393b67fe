"""Which process a running trial belongs to, and whether that process is alive.

On one machine the system tells: an owner holds a lock on a file as long as it lives, however it ends. Of other machines
only the time of their last sign is known.
"""

import time
import uuid
from pathlib import Path
from typing import IO

from .. import locking

_SILENCE = 600.0  # seconds without a sign after which a process on another machine counts as dead


class Owner:
    """This process, for as long as it is within `with`."""

    def __init__(self, folder: Path):
        self._folder = folder
        self.name = uuid.uuid4().hex
        self._file: IO[str] | None = None

    def __enter__(self) -> "Owner":
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file = self._path(self.name).open("w")
        locking.try_lock(self._file)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._file is not None
        self._file.close()
        self._path(self.name).unlink(missing_ok=True)

    def is_dead(self, name: str, last_sign: float) -> bool:
        """Whether another owner is dead, which was last heard of at `last_sign`, in seconds since 1970."""
        silence = time.time() - last_sign
        if name == self.name:
            return False
        if not locking.AVAILABLE or not self._path(name).exists():
            return silence > _SILENCE
        with self._path(name).open("a") as file:
            return locking.try_lock(file)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.lock"
