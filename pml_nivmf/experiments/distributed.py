"""Several processes that train one model, started by torchrun: `torchrun --nproc_per_node=K -m pml_nivmf run …`.

The batch is split over the ranks, and DistributedDataParallel averages the gradients: they are those of one process.
Only rank 0 reads and writes the run folder; `on_first` sends its results to the other ranks. If a rank fails, torchrun
stops the others. Without torchrun, all functions do what one process needs.
"""

import contextlib
import copy
import datetime
import functools
import gc
import os
import random
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
import tqdm
from timm.layers.norm_act import convert_sync_batchnorm
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, RandomSampler

from ..losses import GatheredLoss, GatheredMiner, SampledSoftmax, ShardedSoftmax
from ..losses.collectives import rank, world
from .config import ConfigError

_TIMEOUT = datetime.timedelta(hours=3)  # other ranks wait while rank 0 evaluates and writes
Result = TypeVar("Result")


@contextlib.contextmanager
def session() -> Iterator[None]:
    """Connect the ranks that torchrun's environment variables describe; without these variables do nothing."""
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        yield
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(_local_rank())
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timeout=_TIMEOUT)
    if not is_first():
        tqdm.tqdm.__init__ = functools.partialmethod(tqdm.tqdm.__init__, disable=True)  # one progress bar is enough
    yield
    gc.collect()  # cycles of models and trainers would keep the group, and its threads, until the interpreter ends
    dist.destroy_process_group()  # not after an error: it could wait for a rank that has ended


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


def device_of_rank(device: torch.device) -> torch.device:
    """Return the GPU of this rank, or the device itself if it is not `cuda` or training is not distributed."""
    return torch.device("cuda", _local_rank()) if world() > 1 and device.type == "cuda" else device


def _local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", rank()))


# Random numbers -------------------------------------------------------------------------------------------------


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def seed_epoch(seed: int, epoch: int) -> None:
    """Seed all generators by three numbers only: a run resumed with any number of ranks repeats an epoch's numbers."""
    seed_everything(int(np.random.SeedSequence([seed, epoch, rank()]).generate_state(1)[0]))


# A training step with the gradients of one process ----------------------------------------------------------------


def check_batch_size(batch_size: int) -> None:
    if batch_size % world():
        remedy = f"use a multiple of {world()}, or another number of ranks"
        raise ConfigError(f"general.batch_size: {batch_size} images cannot be split over {world()} ranks: {remedy}")


class RankBatches(BatchSampler):
    """This rank's part of every batch of a sampler, which may be None to shuffle. Rank 0 decides the order for all.

    Each epoch iterates over a copy of the sampler: PML's samplers shuffle in place, but an order must depend on the
    epoch's seed only.
    """

    def __init__(self, sampler: Any, items: int, batch_size: int):
        order = RandomSampler(range(items)) if sampler is None else sampler
        self.whole = order if isinstance(order, BatchSampler) else BatchSampler(order, batch_size, drop_last=True)

    def __len__(self) -> int:
        return len(self.whole)

    def __iter__(self) -> Iterator[list[int]]:
        for batch in on_first(lambda: [list(map(int, order)) for order in copy.deepcopy(self.whole)]):
            check_batch_size(len(batch))
            part = len(batch) // world()
            yield batch[rank() * part : (rank() + 1) * part]


def averaged(module: nn.Module, device: torch.device) -> nn.Module:
    """Return the module with gradients averaged over ranks, and rank 0's weights on all."""
    if world() == 1 or not any(parameter.requires_grad for parameter in module.parameters()):
        return module
    return DistributedDataParallel(module, device_ids=[device] if device.type == "cuda" else None)


def synchronised(trunk: nn.Module, device: torch.device) -> nn.Module:
    """Let batch norms use the statistics of all ranks' images; on CPUs torch supports only those of each rank."""
    is_needed = world() > 1 and device.type == "cuda"
    return convert_sync_batchnorm(trunk) if is_needed else trunk  # torch's would drop activations inside timm's


def joined(loss: nn.Module, miner: Any) -> tuple[nn.Module, Any]:
    """Return loss and miner of the whole batch, so that DDP's average of gradients is the gradient of one process."""
    if world() == 1:
        return loss, miner
    softmax = getattr(getattr(loss, "probabilistic", None), "softmax", None)
    if isinstance(softmax, SampledSoftmax) and softmax.sparse:
        raise ConfigError("loss: sparse gradients cannot be averaged over ranks: use sparse: false")
    if isinstance(softmax, ShardedSoftmax):
        raise ConfigError("loss: ShardedSoftmax is for training loops of your own: leave it out")
    if hasattr(loss, "gather_guidance"):
        loss.gather_guidance = False  # type: ignore[assignment]  # the guidance sees all images already
    return GatheredLoss(loss), None if miner is None else GatheredMiner(miner)
