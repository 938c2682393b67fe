"""From a trunk's features to embeddings."""

import torch
from torch import Tensor, nn

from ..checks import check_count


class EmbeddingHead(nn.Linear):
    """z = s·(W·f + b), not normalised: the norm ‖z‖ is the concentration of the image's von Mises-Fisher distribution.

    s is a buffer, 1 at first. A loss that uses norms says with which norms to start, see `losses.move_scale_to_head`;
    a factor outside W leaves learning rates what they were.

    in_features: the trunk's num_features.
    embedding_size: M, the width of the embeddings.
    bias: whether to add b.
    """

    scale: Tensor

    def __init__(self, in_features: int, embedding_size: int, bias: bool = True) -> None:
        super().__init__(
            check_count("in_features", in_features), check_count("embedding_size", embedding_size), bias=bias
        )
        self.register_buffer("scale", torch.tensor(1.0))

    @property
    def embedding_size(self) -> int:
        return self.out_features

    def forward(self, features: Tensor) -> Tensor:
        return super().forward(features) * self.scale
