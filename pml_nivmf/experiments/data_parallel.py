"""One training step on several ranks, with the gradients of one process: which module sees which images.

The sampler's batch is split over the ranks. Model and loss are wrapped in DistributedDataParallel, which averages
gradients: right as it is for losses that are means over images; others see the joined batch (`losses.GatheredLoss`).
Batch norm layers in training mode take the statistics of all ranks' images on GPUs; on CPUs torch knows only each
rank's own.
"""

from collections.abc import Iterator
from typing import Any

import torch
from pytorch_metric_learning.reducers import MeanReducer, MultipleReducers
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, RandomSampler, Sampler

from ..losses import GatheredLoss, GatheredMiner, JointProxyLoss, ProxyLoss
from ..losses.collectives import rank, world
from .distributed import on_first
from .errors import ConfigError


def check_batch_size(batch_size: int) -> None:
    if batch_size % world():
        fitting = max(ranks for ranks in range(1, world()) if batch_size % ranks == 0)
        raise ConfigError(
            f"general.batch_size: {batch_size} images cannot be split evenly over {world()} ranks: use a multiple of "
            f"{world()}, such as {max(1, batch_size // world()) * world()}, or, to go on with a run, {fitting} ranks",
            key="general.batch_size",
        )


def averaged(module: nn.Module, device: torch.device) -> nn.Module:
    """The module with gradients averaged over ranks, and rank 0's weights on all."""
    if world() == 1 or not any(parameter.requires_grad for parameter in module.parameters()):
        return module
    return DistributedDataParallel(module, device_ids=[device] if device.type == "cuda" else None)


def synchronised(trunk: nn.Module, device: torch.device) -> nn.Module:
    """Batch norms with the statistics of all ranks' images, on GPUs."""
    if world() == 1 or device.type != "cuda":
        return trunk
    return nn.SyncBatchNorm.convert_sync_batchnorm(trunk)


def joined(loss: nn.Module, miner: Any) -> tuple[nn.Module, Any]:
    """A loss that has on each rank the gradients that DDP's average makes right, and its miner."""
    if world() == 1:
        return loss, miner
    _check_loss(loss)
    if miner is None and _is_mean_over_images(loss):
        return loss, None
    if miner is None and isinstance(loss, JointProxyLoss) and _is_mean_over_images(loss.probabilistic):
        loss.gather_guidance = True
        return loss, None
    return GatheredLoss(loss), None if miner is None else GatheredMiner(miner)


def _check_loss(loss: nn.Module) -> None:
    owner = loss.probabilistic if isinstance(loss, JointProxyLoss) else loss
    if isinstance(owner, ProxyLoss) and owner.sparse:
        raise ConfigError("loss: sparse=True cannot be averaged over ranks: leave it out", key="loss")
    if isinstance(owner, ProxyLoss) and owner.sharded:
        raise ConfigError("loss: sharded=True is for training loops of your own: leave it out", key="loss")


def _is_mean_over_images(loss: nn.Module) -> bool:
    if not isinstance(loss, ProxyLoss):
        return False
    reducer = loss.reducer
    if isinstance(reducer, MultipleReducers):  # of the loss and of its regularizers
        reducer = dict(reducer.reducers.items()).get("loss", reducer.default_reducer)
    return type(reducer) is MeanReducer


class RankSampler(Sampler[int]):
    """This rank's part of every batch of `sampler`, which rank 0 alone asks: one order for all, whatever draws it."""

    def __init__(self, sampler: Sampler[int], batch_size: int):
        self.sampler, self.batch_size = sampler, batch_size

    def __len__(self) -> int:
        return len(self.sampler) // self.batch_size * (self.batch_size // world())  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[int]:
        order = on_first(lambda: [int(item) for item in self.sampler])
        part = self.batch_size // world()
        for start in range(0, len(order) - self.batch_size + 1, self.batch_size):
            first = start + rank() * part
            yield from order[first : first + part]


class RankBatchSampler(BatchSampler):
    """The same for a sampler of whole batches."""

    def __init__(self, sampler: BatchSampler):
        self.sampler = sampler  # type: ignore[assignment]
        self.batch_size, self.drop_last = getattr(sampler, "batch_size", 0), True

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[list[int]]:
        for batch in on_first(self._all_batches):
            check_batch_size(len(batch))
            part = len(batch) // world()
            yield batch[rank() * part : (rank() + 1) * part]

    def _all_batches(self) -> list[list[int]]:
        return [[int(item) for item in batch] for batch in self.sampler]  # type: ignore[attr-defined]


def split(sampler: Any, data: Any, batch_size: int) -> Any:
    """The sampler for this rank; None, shuffling, becomes explicit."""
    if world() == 1:
        return sampler
    if isinstance(sampler, BatchSampler):
        return RankBatchSampler(sampler)
    return RankSampler(RandomSampler(data) if sampler is None else sampler, batch_size)
