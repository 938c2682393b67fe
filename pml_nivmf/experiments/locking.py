"""One process a run folder: a lock that the system drops when its holder ends, however it ends."""

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from .errors import ConfigError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

AVAILABLE = fcntl is not None
_LOCK = ".lock"
_held: set[IO[str]] = set()


@contextlib.contextmanager
def only_process(folder: Path) -> Iterator[None]:
    """Within the block no other process can enter such a block for the same folder: it is refused.

    On systems and disks without locks nobody is. The file stays behind, unlocked: whoever removed it could remove
    another's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _opened(folder / _LOCK) as file:
        if not try_lock(file, where_impossible=True):
            raise _in_use(folder, file)
        _sign(file)
        _held.add(file)
        try:
            yield
        finally:
            _held.discard(file)


def check_free(folder: Path) -> None:
    """Refuse a folder that another process works in, before any work is put into it; `only_process` decides."""
    if (folder / _LOCK).exists():
        with _opened(folder / _LOCK) as file:
            if not try_lock(file, where_impossible=True):
                raise _in_use(folder, file)


def try_lock(file: IO[str], where_impossible: bool = False) -> bool:
    """Take the lock on an open file until it is closed; False if another process, or another opening, has it.

    where_impossible: the answer on systems and disks without such locks.
    """
    if fcntl is None:
        return where_impossible
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return where_impossible and error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True


def _opened(path: Path) -> IO[str]:
    """Not through a link: a folder from anywhere could make one of it to a file that signing would empty."""
    if path.is_symlink():
        raise ConfigError(f"{path} is a link, which is not followed: remove it")
    return path.open("a+")


def _sign(file: IO[str]) -> None:
    """Who holds the lock, for the message to others."""
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}")
    file.flush()


def _in_use(folder: Path, file: IO[str]) -> ConfigError:
    file.seek(0)
    return ConfigError(
        f"{folder} is in use by {file.read(200).strip() or 'another process'}: wait for it to end, or choose another "
        "general.run_dir"
    )


def _close_in_child() -> None:
    """A worker process must not keep the lock of a run that was killed."""
    for file in _held:
        os.close(file.fileno())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
