r"""Classes spread over the ranks of a distributed training, for counts that one device cannot hold.

Rank r of K owns about C/K classes. All ranks see all images; each sums its own classes, and the sums are combined:

    log Σ_c exp(logit_c) = log Σ_r exp(s_r),   s_r = log Σ_{c of rank r} exp(logit_c)

What travels is what `_query` made of the embeddings, and two numbers per image and rank; proxies never move. Each rank
ends with the losses of its own images, as without shards.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .chunks import ChunkedLogits
from .collectives import gather, rank, world


@dataclass(frozen=True)
class Shard:
    """Which of `num_classes` classes rank `rank` of `world` ranks owns."""

    num_classes: int
    rank: int
    world: int

    @property
    def lengths(self) -> list[int]:
        """Classes of each rank: equal but for the division's rest, which the first ranks take."""
        each, rest = divmod(self.num_classes, self.world)
        return [each + (r < rest) for r in range(self.world)]

    @property
    def first(self) -> int:
        return sum(self.lengths[: self.rank])

    @property
    def count(self) -> int:
        return self.lengths[self.rank]

    def rows_of(self, whole: Tensor) -> Tensor:
        """This rank's rows of a tensor with a row for each class."""
        return whole[self.first : self.first + self.count]

    @torch.no_grad()
    def initialise(self, rows: Tensor, init: Callable[[Tensor], Any]) -> None:
        """`init` in this rank's rows. All ranks' are drawn, so that equal seeds do not make equal shards."""
        if self.world == 1:
            init(rows)
            return
        for number, length in enumerate(self.lengths):
            drawn = rows.new_empty(length, *rows.shape[1:])
            init(drawn)
            if number == self.rank:
                rows.copy_(drawn)

    def owns(self, labels: Tensor) -> Tensor:
        """Whether each label is one of this rank's classes."""
        return (labels >= self.first) & (labels < self.first + self.count)

    def averaged(self, rows: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The same rows, whose gradients are averages over ranks as DDP's are, not sums."""
        return tuple(_scale_gradient(row, 1 / self.world) for row in rows)

    def negative_log_softmax(self, plan: ChunkedLogits, query: Tensor, labels: Tensor) -> Tensor:
        """(batch,) of this rank's images, over all ranks' classes; `plan` is for the rows of this rank."""
        log_sum, target = plan.log_sum_and_target(gather(query, dim=-2), gather(labels) - self.first)
        terms = gather(torch.stack([log_sum, target], dim=1).unsqueeze(0))  # (ranks, all images, 2)
        log_sums, targets = self._own_images(terms).unbind(-1)
        return torch.logsumexp(log_sums, dim=0) - targets.sum(0)

    def all_logits(self, plan: ChunkedLogits, query: Tensor) -> Tensor:
        """(batch, C) of this rank's images; every rank has to ask, with as many images."""
        logits = plan.all_logits(gather(query, dim=-2))  # (all images, own classes)
        padded = F.pad(logits, (0, max(self.lengths) - self.count))
        parts = self._own_images(gather(padded.unsqueeze(0)))
        return torch.cat([part[:, :length] for part, length in zip(parts, self.lengths, strict=True)], dim=1)

    def _own_images(self, gathered: Tensor) -> Tensor:
        """This rank's part of the second dimension, which has all ranks' images."""
        return gathered.chunk(self.world, dim=1)[self.rank]

    def weigh_regularization(self, loss_dict: dict[str, dict[str, Any]]) -> None:
        """Means over this rank's classes, weighed so that the mean over ranks is the mean over all classes."""
        for name, entry in loss_dict.items():
            if name != "loss":
                weight = self.count * self.world / self.num_classes
                entry["losses"] = _scale_gradient(entry["losses"], 1 / self.world) * weight


def own_shard(num_classes: int) -> Shard:
    if num_classes < world():
        raise ValueError(f"{num_classes} classes cannot be spread over {world()} ranks: leave sharded=True out")
    return Shard(num_classes, rank(), world())


def _scale_gradient(tensor: Tensor, factor: float) -> Tensor:
    return _ScaledGradient.apply(tensor, factor)


class _ScaledGradient(torch.autograd.Function):
    """Identity. Gathered terms bring a rank's own rows the sum of all ranks' gradients, and no DDP averages it."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.factor, None
