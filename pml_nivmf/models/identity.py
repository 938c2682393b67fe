"""The trunk of data that are features already."""

from torch import Tensor, nn

from ..checks import check_count


class Identity(nn.Module):
    """Hands frozen features on unchanged: (batch, num_features) -> the same.

    num_features: their width.
    """

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = check_count("num_features", num_features)

    def forward(self, features: Tensor) -> Tensor:
        if features.ndim != 2 or features.shape[1] != self.num_features:
            raise ValueError(f"expected features of shape (batch, {self.num_features}), got {tuple(features.shape)}")
        return features
