"""From a trunk's features to embeddings."""

from torch import nn

from ..checks import check_count


class EmbeddingHead(nn.Linear):
    """z = W·f + b, not normalised: the norm ‖z‖ is the concentration of the image's von Mises-Fisher distribution.

    in_features: the trunk's num_features.
    embedding_size: M, the width of the embeddings.
    bias: whether to add b.
    """

    def __init__(self, in_features: int, embedding_size: int, bias: bool = True) -> None:
        super().__init__(
            check_count("in_features", in_features), check_count("embedding_size", embedding_size), bias=bias
        )

    @property
    def embedding_size(self) -> int:
        return self.out_features
