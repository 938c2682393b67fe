"""How workers end: Ctrl-C reaches all processes of a terminal, a kill only one; the talking is left to the command."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing.process import BaseProcess as ParentProcess


@contextlib.contextmanager
def children_ignore_interrupts() -> Iterator[None]:
    """Processes started inside ignore Ctrl-C from their first moment, while they import; they inherit it."""
    if threading.current_thread() is not threading.main_thread():  # where handlers cannot be set
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def end_on_interrupt() -> None:
    """For a worker: end at once. Whatever it writes is whole or not there, so nothing is lost by that."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(1))


def end_with_parent() -> None:
    """For a worker: a command that was killed must not leave trainings behind."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_wait_and_end, args=(parent,), daemon=True).start()


def _wait_and_end(parent: ParentProcess) -> None:
    parent.join()
    os._exit(1)
