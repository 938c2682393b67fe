"""Modules that take features: the embedding head, and the trunk of data that are features already."""

import torch
from torch import Tensor, nn

from ..checks import check_count


class EmbeddingHead(nn.Linear):
    """z = s·(W·f + b), not normalised: the norm ‖z‖ is the concentration of the image's von Mises-Fisher distribution.

    s is a buffer, initially 1. A loss that uses norms sets it for the norms that it should start with, see
    `losses.move_scale_to_head`. Because s is not part of W, it does not change the effective learning rate.

    in_features: the trunk's num_features.
    embedding_size: M, the width of the embeddings.
    bias: whether to add b.
    """

    scale: Tensor

    def __init__(self, in_features: int, embedding_size: int, bias: bool = True) -> None:
        check_count("in_features", in_features)
        super().__init__(in_features, check_count("embedding_size", embedding_size), bias=bias)
        self.register_buffer("scale", torch.tensor(1.0))

    def forward(self, features: Tensor) -> Tensor:
        return super().forward(features) * self.scale


class Identity(nn.Module):
    """Returns features (batch, num_features) unchanged.

    num_features: their width.
    """

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = check_count("num_features", num_features)

    def forward(self, features: Tensor) -> Tensor:
        if features.ndim != 2 or features.shape[1] != self.num_features:
            raise ValueError(f"expected features of shape (batch, {self.num_features}), got {tuple(features.shape)}")
        return features
