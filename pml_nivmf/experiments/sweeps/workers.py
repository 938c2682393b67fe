"""Processes that train a sweep's trials, one at a time each and one thread each.

They stay for the whole sweep, so imports and data are paid for once, and know nothing of Optuna: each epoch's score
goes to the sweep through a pipe, and the answer says whether to stop.
"""

import contextlib
import io
import json
import math
import multiprocessing
import statistics
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from .. import registry, run
from ..checkpoint import write_text
from ..dataset_cache import keep_datasets
from ..errors import ConfigError
from ..interrupts import children_wait_with_interrupts, end_with_parent

_PATIENCE = 5.0  # seconds for a process to end by itself
_ENDED = "a worker process ended unexpectedly: is there enough memory?"


@dataclass(frozen=True)
class Epoch:
    """The validation score after an epoch of a trial's first seed; wants `Pool.answer`."""

    number: int
    score: float


@dataclass(frozen=True)
class Finished:
    """The median over seeds of the validation scores; None if the trial was pruned or its loss left the numbers."""

    score: float | None
    seconds: float
    error: str | None = None  # why there is no score; None if pruned


@dataclass(frozen=True)
class Broken:
    """Something that no other trial would survive either."""

    message: str
    kind: type[Exception]


Task = list[tuple[DictConfig, Path]]  # one run a seed


class Pool:
    """`count` worker processes, each idle or at work on one task."""

    def __init__(self, count: int, plugins: Sequence[str]):
        context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
        self._connections: list[Connection] = []
        self._processes = []
        self._busy: set[int] = set()
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, list(plugins)))
            with children_wait_with_interrupts():  # Ctrl-C is for the sweep, which ends its workers itself
                process.start()
            theirs.close()  # or the end of the process would not be seen here
            self._connections.append(ours)
            self._processes.append(process)

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._connections:  # which ends idle workers
            connection.close()
        for worker in self._busy:
            self._processes[worker].terminate()
        for process in self._processes:
            process.join(_PATIENCE)
            process.kill()

    def idle(self) -> list[int]:
        return [worker for worker in range(len(self._connections)) if worker not in self._busy]

    def start(self, worker: int, task: Task) -> None:
        self._send(worker, task)
        self._busy.add(worker)

    def answer(self, worker: int, stop: bool) -> None:
        self._send(worker, stop)

    def _send(self, worker: int, message: Task | bool) -> None:
        try:
            self._connections[worker].send(message)
        except ConnectionError:  # a broken pipe would look like a reader of our output that has gone
            raise ChildProcessError(_ENDED) from None

    def messages(self, timeout: float) -> Iterator[tuple[int, Epoch | Finished | Broken]]:
        """What workers say, waiting for the first at most `timeout` seconds."""
        for ready in wait([self._connections[worker] for worker in self._busy], timeout):
            worker = self._connections.index(ready)  # type: ignore[arg-type]
            try:
                message = self._connections[worker].recv()
            except EOFError:
                message = Broken(_ENDED, ChildProcessError)
            if not isinstance(message, Epoch):
                self._busy.discard(worker)
            yield worker, message


# In the worker's process ----------------------------------------------------------------------------------------


def _serve(connection: Connection, plugins: list[str]) -> None:
    end_with_parent()
    keep_datasets()
    for plugin in plugins:
        registry.load_plugin(plugin)
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        connection.send(_run_task(task, connection))


def _run_task(task: Task, connection: Connection) -> Finished | Broken:
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # PML's own bars, one an epoch: the sweep has one for all
            return _run_seeds(task, connection)
    except ConfigError as error:
        return Broken(str(error), ConfigError)
    except Exception:  # whatever it is, the user must see it where the sweep runs
        return Broken(traceback.format_exc(), RuntimeError)


def _run_seeds(task: Task, connection: Connection) -> Finished:
    scores, seconds = [], 0.0
    for i, (config, folder) in enumerate(task):
        config.general.threads = 1
        try:
            summary = run.start(config, folder, True, _reporter(config, connection) if i == 0 else _never_stop)
        except FloatingPointError as error:
            write_text(folder / "summary.json", json.dumps({"status": "diverged", "error": str(error)}, indent=1))
            return Finished(None, seconds, str(error) or "diverged")
        seconds += summary["seconds"]
        if summary["status"] == "pruned":
            return Finished(None, seconds)
        if not math.isfinite(summary["validation_score"]):
            raise ConfigError(
                f"evaluation.select: {config.evaluation.select} is not a number on the validation classes"
            )
        scores.append(summary["validation_score"])
    return Finished(statistics.median(scores), seconds)


def _reporter(config: DictConfig, connection: Connection) -> run.OnEpoch:
    key = f"validation_{config.evaluation.select}"

    def report(row: dict[str, Any]) -> bool:
        if key not in row or row["epoch"] == config.general.epochs:  # nothing is saved by stopping after the last
            return False
        try:
            connection.send(Epoch(row["epoch"], row[key]))
            return bool(connection.recv())
        except (EOFError, ConnectionError):  # the sweep has ended, and with it this process
            raise SystemExit from None

    return report


def _never_stop(row: dict[str, Any]) -> bool:
    return False
