"""A training step on several ranks with the gradients of one process.

The batch is split over the ranks, and DistributedDataParallel averages the gradients of model and loss. This is right
for losses that are means over images; other losses see the joined batch (`GatheredLoss`).
"""

from collections.abc import Iterator
from typing import Any

import torch
from pytorch_metric_learning.reducers import MeanReducer, MultipleReducers
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, RandomSampler

from ..losses import GatheredLoss, GatheredMiner, ProxyLoss, SampledSoftmax, ShardedSoftmax
from ..losses.collectives import rank, world
from .config import ConfigError
from .distributed import on_first


def check_batch_size(batch_size: int) -> None:
    if batch_size % world():
        raise ConfigError(
            f"general.batch_size: {batch_size} images cannot be split evenly over {world()} ranks: use a multiple of "
            f"{world()}, or another number of ranks",
            key="general.batch_size",
        )


def averaged(module: nn.Module, device: torch.device) -> nn.Module:
    """Return the module with gradients averaged over ranks, and rank 0's weights on all."""
    if world() == 1 or not any(parameter.requires_grad for parameter in module.parameters()):
        return module
    return DistributedDataParallel(module, device_ids=[device] if device.type == "cuda" else None)


def synchronised(trunk: nn.Module, device: torch.device) -> nn.Module:
    """Let batch norms use the statistics of all ranks' images; on CPUs torch supports only those of each rank."""
    if world() == 1 or device.type != "cuda":
        return trunk
    return nn.SyncBatchNorm.convert_sync_batchnorm(trunk)


def joined(loss: nn.Module, miner: Any) -> tuple[nn.Module, Any]:
    """Return loss and miner such that DDP's average of the ranks' gradients is the gradient of the whole batch."""
    if world() == 1:
        return loss, miner
    probabilistic = getattr(loss, "probabilistic", None)
    _check_loss(probabilistic)
    if miner is None and _is_mean_over_images(probabilistic):
        if loss is not probabilistic:
            loss.gather_guidance = True  # type: ignore[assignment]
        return loss, None
    return GatheredLoss(loss), None if miner is None else GatheredMiner(miner)


def _check_loss(loss: nn.Module | None) -> None:
    softmax = getattr(loss, "softmax", None)
    if isinstance(softmax, SampledSoftmax) and softmax.sparse:
        raise ConfigError("loss: sparse gradients cannot be averaged over ranks: use sparse: false", key="loss")
    if isinstance(softmax, ShardedSoftmax):
        raise ConfigError("loss: ShardedSoftmax is for training loops of your own: leave it out", key="loss")


def _is_mean_over_images(loss: nn.Module | None) -> bool:
    if not isinstance(loss, ProxyLoss):
        return False
    reducer = loss.reducer
    if isinstance(reducer, MultipleReducers):  # of the loss and of its regularizers
        reducer = dict(reducer.reducers.items()).get("loss", reducer.default_reducer)
    return type(reducer) is MeanReducer


class RankBatchSampler(BatchSampler):
    """This rank's part of every batch of `sampler`. Only rank 0 iterates over it, so all ranks see one order."""

    def __init__(self, sampler: BatchSampler):
        self.sampler = sampler  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[list[int]]:
        for batch in on_first(self._batches):
            check_batch_size(len(batch))
            part = len(batch) // world()
            yield batch[rank() * part : (rank() + 1) * part]

    def _batches(self) -> list[list[int]]:
        return [[int(item) for item in batch] for batch in self.sampler]  # type: ignore[attr-defined]


def split(sampler: Any, data: Any, batch_size: int) -> Any:
    """Return the sampler for this rank; None means shuffling."""
    if world() == 1:
        return sampler
    if not isinstance(sampler, BatchSampler):
        sampler = BatchSampler(RandomSampler(data) if sampler is None else sampler, batch_size, drop_last=True)
    return RankBatchSampler(sampler)
