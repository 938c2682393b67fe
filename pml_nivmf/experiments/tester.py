"""Evaluation on several ranks: each embeds a share, rank 0 computes the metrics, as one process would."""

from typing import Any

import torch
import torch.distributed as dist
from pytorch_metric_learning.testers import GlobalEmbeddingSpaceTester
from torch import Tensor, nn
from torch.utils.data import Subset

from ..losses.collectives import gather_uneven, rank, world
from .distributed import is_first


class SharingTester(GlobalEmbeddingSpaceTester):
    """PML's, whose batches of images are dealt out to the ranks.

    The batches are those of one process, so that embeddings are equal to the last bit; metrics follow on rank 0 while
    the others wait, for retrieval is cheap beside embedding.
    """

    def get_all_embeddings(
        self, dataset: Any, trunk_model: nn.Module, embedder_model: nn.Module, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        shares = deal(len(dataset), self.batch_size)
        if not all(len(share) for share in shares):  # also with one rank: too few batches to share
            return super().get_all_embeddings(dataset, trunk_model, embedder_model, *args, **kwargs)
        same_buffers(trunk_model, embedder_model)
        own = Subset(dataset, shares[rank()].tolist())
        found = super().get_all_embeddings(own, trunk_model, embedder_model, *args, **kwargs)
        embeddings, labels = (_joined(part, shares) for part in found)
        return embeddings, labels

    def do_knn_and_accuracies(self, accuracies: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if is_first():
            super().do_knn_and_accuracies(accuracies, *args, **kwargs)


def deal(items: int, batch_size: int) -> list[Tensor]:
    """The items of each rank: whole batches in turn. One empty share if there is but one rank."""
    batch = torch.arange(items) // batch_size
    return [(batch % world() == r).nonzero().flatten() for r in range(world())] if world() > 1 else [batch[:0]]


def same_buffers(*modules: nn.Module) -> None:
    """Rank 0's on all: running statistics of batch norms are of each rank's own images."""
    for module in modules:
        for buffer in module.buffers():
            dist.broadcast(buffer, 0)


def _joined(part: Tensor, shares: list[Tensor]) -> Tensor:
    whole = part.new_empty(sum(len(share) for share in shares), *part.shape[1:])
    for share, rows in zip(shares, gather_uneven(part, [len(share) for share in shares]), strict=True):
        whole[share.to(part.device)] = rows
    return whole
