"""Losses that couple the images of a batch, on the batch of all ranks."""

from typing import Any

from torch import Tensor, nn

from .collectives import gather


class GatheredLoss(nn.Module):
    r"""A loss on the joined batch of all ranks of a distributed training:

        L(z₁ … z_K) on every rank, z_r = rank r's embeddings

    For losses that are not a mean over images, such as PML's ProxyAnchorLoss, which compares a proxy with all images of
    the batch. Wrap it in DistributedDataParallel as the model is: gradients of model and proxies are then those of one
    process with the joined batch. (PML's DistributedLossWrapper leaves proxy gradients K times too large.) This
    package's own proxy losses are means over images and need DDP alone. Without torch.distributed it is the loss.

    Args:
        loss: any loss called with (embeddings, labels, indices_tuple).

    All ranks must bring batches of one size: drop_last=True. An `indices_tuple` is of the joined batch, see
    `GatheredMiner`.
    """

    def __init__(self, loss: nn.Module):
        super().__init__()
        self.loss = loss

    def forward(self, embeddings: Tensor, labels: Tensor, indices_tuple: Any = None) -> Tensor:
        return self.loss(gather(embeddings), gather(labels.to(embeddings.device)), indices_tuple)


class GatheredMiner(nn.Module):
    r"""A miner on the joined batch of all ranks, tuples = miner(z₁ … z_K), for a `GatheredLoss`.

    Args:
        miner: any of PML's, called with (embeddings, labels).
    """

    def __init__(self, miner: nn.Module):
        super().__init__()
        self.miner = miner

    def forward(self, embeddings: Tensor, labels: Tensor) -> Any:
        return self.miner(gather(embeddings.detach()), gather(labels.to(embeddings.device)))
