"""A full disk and too little memory, however deep they are met, end a run in one sentence that says how to go on."""

import contextlib
import errno
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import torch

from .distributed import resume_command

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")


@contextlib.contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Errors of the system within the block become an OSError for people."""
    try:
        yield
    except Exception as error:
        if any(_is_full_disk(each) for each in _chain(error)):
            raise OSError(
                f"the disk of {folder} is full, or a quota is reached: free some space. {_go_on(folder)}"
            ) from error
        if any(_is_no_memory(each) for each in _chain(error)):
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise OSError(
                f"out of memory ({reason}): use more memory or, in another run, a smaller general.batch_size, "
                f"evaluation.batch_size or model. {_go_on(folder)}"
            ) from error
        raise


def _go_on(folder: Path) -> str:
    """Everything is written whole or not at all: what was there before the failure still is."""
    if not (folder / "config.yaml").exists():
        return "Nothing was begun: give the same command again"
    return f"Finished epochs are intact; go on with: {resume_command(folder)}"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what it came from: torch and SQLite hide the system's error behind their own."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_full_disk(error: BaseException) -> bool:
    if isinstance(error, sqlite3.OperationalError):
        return "full" in str(error) or "disk I/O" in str(error)
    return isinstance(error, OSError) and error.errno in _FULL


def _is_no_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _NO_MEMORY)
