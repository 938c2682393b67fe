"""When a rank of a distributed run dies, the others end, and say how to go on."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

import torch.distributed as dist

from ..losses.collectives import rank, world

# gloo raises plain RuntimeErrors: what they say of a peer that is gone or silent.
_LOST = ("closed by peer", "reset by peer", "Broken pipe", "Connection refused", "Timed out", "timed out", "gloo")


_PATIENCE = 20.0  # seconds; torchrun kills 30 after it has told to end
_unfinished = threading.Lock()


class RankLostError(OSError):
    """Another rank is gone."""


@contextlib.contextmanager
def explained(go_on: str) -> Iterator[None]:
    """A lost rank within the block ends this one with a message that holds `go_on`, a command.

    It shows itself as an error of a collective or, from torchrun, as SIGTERM.
    """
    if world() == 1:
        yield
        return
    hint = f"Finished epochs are saved; go on, with any number of ranks, with: {go_on}"
    message = f"pml-nivmf: rank {rank()} was told to end: torchrun does so when another rank fails. {hint}"
    with _end_on_sigterm(message) as dumb:
        try:
            yield
        except BaseException as error:
            dumb.set()  # one message is enough
            if not _tells_of_a_lost_rank(error):
                raise
            raise RankLostError(f"rank {rank()} lost another rank, which died or no longer answers. {hint}") from error


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
def _end_on_sigterm(message: str) -> Iterator[threading.Event]:
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
    threading.Thread(target=_listen, args=(ear, os.getpid(), message, dumb), daemon=True).start()
    yield dumb
    # Not after an error, which takes its time to be told: torchrun may be faster.
    signal.set_wakeup_fd(fd_before)
    signal.signal(signal.SIGTERM, before)
    os.close(mouth)  # ends the thread


def _listen(ear: int, process: int, message: str, dumb: threading.Event) -> None:
    while number := os.read(ear, 1):
        if number[0] == signal.SIGTERM and os.getpid() == process:
            was_busy = _unfinished.locked()
            _unfinished.acquire(timeout=_PATIENCE)
            if was_busy or dumb.is_set():
                time.sleep(5)
            else:
                print(message, file=sys.stderr, flush=True)
            os._exit(128 + signal.SIGTERM)  # nothing is lost: files are written whole or not at all
    os.close(ear)
