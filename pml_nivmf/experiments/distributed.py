"""Several processes that train one model, started by torchrun: `torchrun --nproc_per_node=K -m pml_nivmf run …`.

Only rank 0 reads and writes the run folder, so other machines need no access to it; `on_first` sends its results to
the other ranks. If a rank fails, torchrun stops the others. Without torchrun all functions do what one process needs.
"""

import contextlib
import datetime
import functools
import os
import random
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
import tqdm

from ..losses.collectives import mean_over_ranks, rank, world

_TIMEOUT = datetime.timedelta(minutes=30)  # other ranks wait while rank 0 computes metrics and writes
Result = TypeVar("Result")


@contextlib.contextmanager
def session() -> Iterator[None]:
    """Connect the ranks that torchrun's environment variables describe; without these variables do nothing."""
    if not is_launched():
        yield
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(_local_rank())
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timeout=_TIMEOUT)
    if not is_first():
        tqdm.tqdm.__init__ = functools.partialmethod(tqdm.tqdm.__init__, disable=True)  # one progress bar is enough
    yield
    dist.destroy_process_group()  # not after an error: it could wait for a rank that has ended


def is_launched() -> bool:
    """Return whether torchrun, or another launcher with its variables, has started several processes."""
    return int(os.environ.get("WORLD_SIZE", 1)) > 1


def is_first() -> bool:
    """Return whether this is the rank that writes; True if training is not distributed."""
    return rank() == 0


def on_first(work: Callable[[], Result]) -> Result:
    """Call `work` on rank 0 and return its result on all ranks. If it fails, the other ranks exit silently."""
    if world() == 1:
        return work()
    outcome: list[Any] = [None, False]
    error: Exception | None = None
    if is_first():
        try:
            outcome = [work(), True]
        except Exception as raised:
            error = raised
    dist.broadcast_object_list(outcome, src=0, device=torch.device("cpu"))
    if error is not None:
        raise error
    if not outcome[1]:
        raise SystemExit(1)
    return outcome[0]


def first_on_each_machine(work: Callable[[], Result]) -> Result:
    """Call `work` on all ranks, on each machine on one rank before the others: it may leave files for them."""
    if _local_rank() > 0:
        mean(0.0)  # wait
    result = work()
    if _local_rank() == 0:
        mean(0.0)  # let the others start
    return result


def mean(value: float) -> float:
    """Return the mean over all ranks."""
    return float(mean_over_ranks(torch.tensor([value], dtype=torch.float64)))


def seed_rank(seed: int, epoch: int) -> None:
    """Give every rank but the first its own noise in this epoch; the first continues with the checkpointed generators.

    The seed depends on three numbers only, so a run can be resumed with any number of ranks.
    """
    if not is_first():
        seed_everything(int(np.random.SeedSequence([seed, epoch, rank()]).generate_state(1, np.uint32)[0]))


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def device_of_rank(device: torch.device) -> torch.device:
    """Return the GPU of this rank, or the device itself if it is not `cuda` or training is not distributed."""
    return torch.device("cuda", _local_rank()) if world() > 1 and device.type == "cuda" else device


def _local_rank() -> int:
    """Return the number of this process on its machine."""
    return int(os.environ.get("LOCAL_RANK", rank()))
