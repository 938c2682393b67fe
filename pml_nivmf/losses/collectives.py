"""Tensors of all ranks joined, and losses on the joined batch. DDP minimises the mean of the losses of all ranks."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def world() -> int:
    """The number of processes; 1 without torch.distributed."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """The number of this process; 0 without torch.distributed."""
    return dist.get_rank() if world() > 1 else 0


def mean_over_ranks(values: Tensor) -> Tensor:
    """The mean of the values of all ranks, without gradients."""
    total = torch.stack([values.detach().sum(), torch.full_like(values[0], len(values))])
    if world() > 1:
        dist.all_reduce(total)
    return total[0] / total[1]


def gather(tensor: Tensor, dim: int = 0) -> Tensor:
    """The tensors of all ranks joined along `dim`, in order of rank; differentiable once. All have the same shape."""
    return tensor if world() == 1 else torch.cat(_Gather.apply(tensor), dim=dim % tensor.ndim)


class _Gather(torch.autograd.Function):
    """The losses of all ranks use the tensor, so that its gradient is the sum over ranks."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> tuple[Tensor, ...]:
        parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(world())]
        dist.all_gather(parts, tensor.contiguous())
        return tuple(parts)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        total = torch.stack(grads)  # all parts, because not every backend has reduce_scatter
        dist.all_reduce(total)
        return total[rank()]


@torch.no_grad()
def gather_uneven(tensor: Tensor, lengths: Sequence[int], device: str | None = None) -> list[Tensor]:
    """The tensors of all ranks, without gradients, moved to `device` one by one; that of rank r has lengths[r] rows."""
    parts = []
    for source, length in enumerate(lengths):
        part = tensor.contiguous() if source == rank() else tensor.new_empty(length, *tensor.shape[1:])
        if world() > 1:
            dist.broadcast(part, source)
        parts.append(part.to(device or tensor.device))
    return parts


class GatheredLoss(nn.Module):
    """A loss on the joined batch of all ranks, L(z₁ … z_K), for losses that are not a mean over images.

    Wrap it in DistributedDataParallel like the model: gradients of model and proxies are then those of one process with
    the joined batch. (With PML's DistributedLossWrapper, gradients of proxies are K times too large.) The proxy losses
    of this package are means over images and need DDP only. All ranks need batches of the same size.

    Args:
        function: a loss, called with (embeddings, labels, tuples of the joined batch, see `GatheredMiner`).
    """

    def __init__(self, function: nn.Module):
        super().__init__()
        self.function = function

    def forward(self, embeddings: Tensor, labels: Tensor, *args: Any) -> Any:
        return self.function(gather(embeddings), gather(labels.to(embeddings.device)), *args)


class GatheredMiner(GatheredLoss):
    """A miner on the joined batch of all ranks, called with (embeddings, labels), for a `GatheredLoss`."""
