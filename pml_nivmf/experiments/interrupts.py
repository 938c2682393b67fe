"""How Ctrl-C ends commands and their workers, so that it is never lost.

Python raises KeyboardInterrupt wherever the main thread happens to be. In a destructor, a callback or a library's
`except:` around an import it is lost, and the command goes on as if nothing had been typed. So commands
`end_at_once` while they only import, and `remembered` keeps in mind what was typed later: `check` raises it again.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess as ParentProcess
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130  # what a shell reports for Ctrl-C
_CAN_WAIT = hasattr(signal, "pthread_sigmask")  # not on Windows
_typed = threading.Event()


# Of the command -------------------------------------------------------------------------------------------------


def end_at_once(message: str) -> None:
    """For a process of our own, until `remembered`: nothing is begun, so there is nothing to unwind."""

    def end(*_: object) -> NoReturn:
        print(message, file=sys.stderr)
        leave()

    if not _is_ignored():
        signal.signal(signal.SIGINT, end)


@contextlib.contextmanager
def remembered() -> Iterator[None]:
    """Within the block Ctrl-C raises KeyboardInterrupt, as ever, and if that is lost `check` raises it again."""
    if _is_ignored() or threading.current_thread() is not threading.main_thread():  # which alone can set handlers
        yield
        return
    before = signal.signal(signal.SIGINT, _remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        _typed.clear()


def _remember(number: int, frame: FrameType | None) -> NoReturn:
    _typed.set()
    raise KeyboardInterrupt


def check() -> None:
    """Raise an interrupt that was lost; for moments between two pieces of work."""
    if _typed.is_set():
        raise KeyboardInterrupt


def leave() -> NoReturn:
    """End the process with `INTERRUPTED`, now: of an interrupt that went through `exec` of a string, as named tuples
    use it, Python would die at its end although it was caught."""
    with contextlib.suppress(OSError):  # a reader that is gone
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(INTERRUPTED)


def _is_ignored() -> bool:
    """So shells start what scripts put into the background: Ctrl-C there is for others."""
    return signal.getsignal(signal.SIGINT) is signal.SIG_IGN


# Of workers: Ctrl-C reaches all processes of a terminal, a kill only one; the talking is left to the command ---------


@contextlib.contextmanager
def children_wait_with_interrupts() -> Iterator[None]:
    """Processes started inside keep Ctrl-C waiting from their first moment, while they import; they inherit it.

    Here it waits for the end of the block.
    """
    if not _CAN_WAIT:
        yield
        return
    resource_tracker.ensure_running()  # its start would let interrupts through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_on_interrupt() -> None:
    """For a worker: end at once. Whatever it writes is whole or not there, so nothing is lost by that."""
    if not _is_ignored():
        signal.signal(signal.SIGINT, lambda *_: os._exit(1))
    if _CAN_WAIT:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


def end_with_parent() -> None:
    """For a worker: a command that was killed must not leave trainings behind."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_wait_and_end, args=(parent,), daemon=True).start()


def _wait_and_end(parent: ParentProcess) -> None:
    parent.join()
    os._exit(1)
