r"""Tensors of all ranks joined, with gradients that fit DistributedDataParallel.

The convention is DDP's: rank r has a loss L_r, the training minimises (1/K)·Σ_r L_r over K ranks, and DDP averages the
ranks' gradients. A tensor that was gathered is used by every rank's loss, so its owner's gradient is the sum of what
all ranks found: after DDP's average this is the gradient of the mean loss.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    """This process's number; 0 where nothing is distributed."""
    return dist.get_rank() if is_distributed() else 0


def world() -> int:
    """The number of processes; 1 where nothing is distributed."""
    return dist.get_world_size() if is_distributed() else 1


def gather(tensor: Tensor, dim: int = 0) -> Tensor:
    """The tensors of all ranks, in their order, joined along `dim`, differentiable once; all must have one shape."""
    if world() == 1:
        return tensor
    dim = dim % tensor.ndim
    return torch.cat(_Gather.apply(tensor), dim=dim)


class _Gather(torch.autograd.Function):
    """K tensors from one; backward, each rank's tensor gets the sum of what all ranks found for it."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> tuple[Tensor, ...]:
        parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(world())]
        dist.all_gather(parts, tensor.contiguous())
        return tuple(parts)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        joined = torch.stack(grads)  # summed whole, for not every backend can sum and scatter
        dist.all_reduce(joined)
        return joined[rank()]


@torch.no_grad()
def gather_uneven(tensor: Tensor, lengths: Sequence[int]) -> list[Tensor]:
    """The tensors of all ranks, rank r's with lengths[r] rows; without gradients."""
    if world() == 1:
        return [tensor]
    padded = tensor.new_zeros(max(lengths), *tensor.shape[1:])
    padded[: len(tensor)] = tensor
    parts = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(parts, padded)
    return [part[:length] for part, length in zip(parts, lengths, strict=True)]


@torch.no_grad()
def broadcast_rows(tensor: Tensor, lengths: Sequence[int]) -> Iterator[Tensor]:
    """The same, one rank's rows after the other: where a device cannot hold all."""
    if world() == 1:
        yield tensor
        return
    for source, length in enumerate(lengths):
        part = tensor.contiguous() if source == rank() else tensor.new_empty(length, *tensor.shape[1:])
        dist.broadcast(part, source)
        yield part
