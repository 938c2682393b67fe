"""When a rank of a distributed run dies or Ctrl-C is typed, all ranks end, and say how to go on."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import NoReturn

import torch.distributed as dist

from .distributed import is_launched
from .interrupts import INTERRUPTED

# gloo raises plain RuntimeErrors: what they say of a peer that is gone or silent.
_LOST = ("closed by peer", "reset by peer", "Broken pipe", "Connection refused", "Timed out", "timed out", "gloo")


_PATIENCE = 20.0  # seconds; torchrun kills 30 after it has told to end
_INTERRUPT_PATIENCE = 5.0  # for the main thread to do as it does without us, if it is not waiting in a collective
_unfinished = threading.Lock()


class RankLostError(OSError):
    """Another rank is gone."""


@contextlib.contextmanager
def explained(go_on: Callable[[], str]) -> Iterator[None]:
    """A lost rank within the block ends this one with a message that holds `go_on()`, a sentence.

    It shows itself as an error of a collective or, from torchrun, as SIGTERM.
    """
    if not is_launched():
        yield
        return
    rank = os.environ["RANK"]
    with _listening(rank, go_on) as dumb:
        try:
            yield
        except BaseException as error:
            dumb.set()  # one message is enough
            if not _tells_of_a_lost_rank(error):
                raise
            raise RankLostError(f"rank {rank} lost another rank, which died or no longer answers. {go_on()}") from error


def _tells_of_a_lost_rank(error: BaseException) -> bool:
    if isinstance(error, dist.DistError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _LOST)


@contextlib.contextmanager
def finishing() -> Iterator[None]:
    """What is in the block is finished although torchrun says to end, because another rank was faster to fail."""
    with _unfinished:
        yield


@contextlib.contextmanager
def _listening(rank: str, go_on: Callable[[], str]) -> Iterator[threading.Event]:
    """A thread listens, because the main one may be waiting in a collective, where Python handles no signal.

    Once the event is set, it leaves the talking, and a moment for it, to the main thread.
    """
    dumb = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # where handlers cannot be set
        yield dumb
        return
    ear, mouth = os.pipe()
    os.set_blocking(mouth, False)
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    fd_before = signal.set_wakeup_fd(mouth, warn_on_full_buffer=False)
    threading.Thread(target=_listen, args=(ear, os.getpid(), rank, go_on, dumb), daemon=True).start()
    yield dumb
    # Not after an error, which takes its time to be told: torchrun may be faster.
    signal.set_wakeup_fd(fd_before)
    signal.signal(signal.SIGTERM, before)
    os.close(mouth)  # ends the thread


def _listen(ear: int, process: int, rank: str, go_on: Callable[[], str], dumb: threading.Event) -> None:
    while number := os.read(ear, 1):
        if os.getpid() != process:  # a worker of a loader
            continue
        if number[0] == signal.SIGTERM:
            _end_unless_busy(f"rank {rank} was told to end: torchrun does so when another rank fails. {go_on()}", dumb)
        if number[0] == signal.SIGINT and not dumb.wait(_INTERRUPT_PATIENCE):
            _say(f"rank {rank} was interrupted. {go_on()}")
            os._exit(INTERRUPTED)
    os.close(ear)


def _end_unless_busy(message: str, dumb: threading.Event) -> NoReturn:
    was_busy = _unfinished.locked()
    _unfinished.acquire(timeout=_PATIENCE)
    if was_busy or dumb.is_set():
        time.sleep(5)
    else:
        _say(message)
    os._exit(128 + signal.SIGTERM)  # nothing is lost: files are written whole or not at all


def _say(message: str) -> None:
    print(f"pml-nivmf: {message}", file=sys.stderr, flush=True)
