"""Several processes that train one model, as torchrun starts them: `torchrun --nproc_per_node=K -m pml_nivmf run …`.

Rank 0 alone reads and writes the run folder, so that other machines need not see it; what it finds it tells the others
with `on_first`. Without torchrun all functions do what one process needs.
"""

import contextlib
import datetime
import functools
import os
import random
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
import tqdm

from ..losses.collectives import rank, world
from .errors import ConfigError

# Of every collective. The others wait while rank 0 computes metrics and writes; a dead rank is noticed much earlier.
_TIMEOUT = datetime.timedelta(minutes=30)
_NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_CPU = torch.device("cpu")
Result = TypeVar("Result")


@contextlib.contextmanager
def session() -> Iterator[None]:
    """Within the block the ranks are connected that torchrun's environment variables tell of; without them, nothing."""
    if _world_of_environment() == 1:
        yield
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(_gpu_of_rank())
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timeout=_TIMEOUT)
    if not is_first():
        tqdm.tqdm.__init__ = functools.partialmethod(tqdm.tqdm.__init__, disable=True)  # one progress bar is enough
    yield
    dist.destroy_process_group()  # not after an error: it could wait for a rank that is gone


def is_launched() -> bool:
    """Whether torchrun, or another launcher with its variables, has started several of us."""
    return _world_of_environment() > 1


def is_first() -> bool:
    """Whether this is the rank that writes; always true where nothing is distributed."""
    return rank() == 0


def on_first(work: Callable[[], Result]) -> Result:
    """Rank 0 does the work, all get its result. If it fails, it says why and the others end without a word."""
    if world() == 1:
        return work()
    outcome: list[Any] = [None, False]
    error: Exception | None = None
    if is_first():
        try:
            outcome = [work(), True]
        except Exception as raised:
            error = raised
    dist.broadcast_object_list(outcome, src=0, device=_CPU)
    if error is not None:
        raise error
    if not outcome[1]:
        raise SystemExit(1)
    return outcome[0]


def first_here(work: Callable[[], Result]) -> Result:
    """All do the work, on each machine one before the others: it may leave files that they can use."""
    if world() == 1:
        return work()
    if _local_rank() == 0:
        result = work()
        mean(0.0)  # tells the others
        return result
    mean(0.0)
    return work()


def ranks_where(holds: bool) -> list[int]:
    """The ranks on which it holds; all must ask."""
    answers = torch.zeros(world(), dtype=torch.int32)
    answers[rank()] = int(holds)
    if world() > 1:
        dist.all_reduce(answers)
    return answers.nonzero().flatten().tolist()


def mean(value: float) -> float:
    """Over all ranks."""
    total = torch.tensor(value, dtype=torch.float64)
    if world() > 1:
        dist.all_reduce(total)
    return float(total) / world()


@contextlib.contextmanager
def entered_on_first(context: contextlib.AbstractContextManager[None]) -> Iterator[None]:
    """A context that rank 0 alone enters; if it may not, all end."""
    with contextlib.ExitStack() as stack:
        on_first(lambda: stack.enter_context(context))
        yield


def seed_rank(seed: int, epoch: int) -> None:
    """Noise of its own for each rank but the first, which goes on with the generators that checkpoints hold.

    It follows from three numbers: nothing has to be saved, and a run goes on with any number of ranks.
    """
    if not is_first():
        drawn = np.random.SeedSequence([seed, epoch, rank()]).generate_state(1, np.uint32)
        seed_everything(int(drawn[0]))


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def device_of_rank(device: torch.device) -> torch.device:
    """Each rank on its own GPU."""
    if world() == 1 or device.type != "cuda":
        return device
    if device.index is not None:
        raise ConfigError(
            f"general.device: {device} is one GPU, but there are {world()} ranks: use cuda or auto, and each takes "
            "the GPU of its LOCAL_RANK",
            key="general.device",
        )
    return torch.device("cuda", _gpu_of_rank())


def resume_command(folder: Path, plugins: Sequence[str] = ()) -> str:
    """As one would type it."""
    words = ["run", "--resume", str(folder), *(f"--plugin={plugin}" for plugin in plugins)]
    ranks = _world_of_environment()
    if ranks == 1:
        return shlex.join(["pml-nivmf", *words])
    here = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    machines = [] if here == ranks else [f"--nnodes={ranks // here}"]
    return shlex.join(["torchrun", *machines, f"--nproc_per_node={here}", "-m", "pml_nivmf", *words])


def _world_of_environment() -> int:
    found = [name for name in _NEEDED if name in os.environ]
    if not {"RANK", "WORLD_SIZE"} & set(found):
        return 1
    missing = [name for name in _NEEDED if name not in found]
    if missing:
        raise ConfigError(
            f"{', '.join(found)} is set in the environment, {', '.join(missing)} is not: start several processes with "
            "torchrun --nproc_per_node=K -m pml_nivmf run …, or unset it"
        )
    ranks, number = (_number(name) for name in ("WORLD_SIZE", "RANK"))
    if not 0 <= number < ranks:
        raise ConfigError(f"RANK={number} and WORLD_SIZE={ranks} in the environment do not fit: start with torchrun")
    return ranks


def _local_rank() -> int:
    """This process's number on its machine."""
    return _number("LOCAL_RANK") if "LOCAL_RANK" in os.environ else rank()


def _gpu_of_rank() -> int:
    number = _local_rank()
    if number >= torch.cuda.device_count():
        raise ConfigError(
            f"there is no GPU for LOCAL_RANK {number}: torch sees {torch.cuda.device_count()}; use at most that "
            "--nproc_per_node, or CUDA_VISIBLE_DEVICES= and general.device=cpu for the CPU"
        )
    return number


def _number(name: str) -> int:
    try:
        return int(os.environ[name])
    except ValueError:
        raise ConfigError(f"{name}={os.environ[name]!r} in the environment is no number: start with torchrun") from None
