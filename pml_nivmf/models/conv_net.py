"""A small convolutional trunk for images of 28 to 32 pixels, trained from scratch on a CPU."""

import torch
from torch import Tensor, nn

from ..checks import check_count

_POOLINGS = {"max": nn.AdaptiveMaxPool2d, "avg": nn.AdaptiveAvgPool2d}


class ConvNet(nn.Module):
    """Blocks of convolution, batch norm, ReLU and 2×2 max pooling, then pooling over the whole image.

    (batch, in_channels, height, width) -> (batch, 2·width). Blocks are narrow where images are large, which is where
    the time goes: their widths are width/4, width/2, width, …, and 2·width for the last. Pooling over the whole image
    makes num_features independent of the image's size. In short trainings on Omniglot, one or two seeds, the maximum
    beat the mean by 6 to 9 points of Recall@1 with 3 blocks; with 4 the mean was 3 points better.

    in_channels: 1 for grey images, 3 for colour.
    width: the scale of all blocks' channels, at least 4; num_features = 2·width.
    depth: how many blocks; images must measure 2^(depth-1) pixels at least.
    pooling: over the whole image, "max" or "avg".
    """

    def __init__(self, in_channels: int = 1, width: int = 64, depth: int = 3, pooling: str = "max") -> None:
        super().__init__()
        check_count("in_channels", in_channels)
        if check_count("width", width) < 4:
            raise ValueError(f"width must be at least 4, got {width}: the first block has a quarter of it")
        if pooling not in _POOLINGS:
            raise ValueError(f"pooling must be one of {', '.join(_POOLINGS)}, got {pooling!r}")
        self.num_features = 2 * width
        self.min_size = 2 ** (check_count("depth", depth) - 1)
        widths = [*((width << i) // 4 for i in range(depth - 1)), self.num_features]
        inputs = [in_channels, *widths]
        blocks = [_block(inputs[i], widths[i], halve=i < depth - 1) for i in range(depth)]
        self.layers = nn.Sequential(*blocks, _POOLINGS[pooling](1), nn.Flatten())
        self.to(memory_format=torch.channels_last)  # 1.5 times as fast on a CPU

    def forward(self, images: Tensor) -> Tensor:
        if min(images.shape[-2:]) < self.min_size:
            raise ValueError(
                f"images of {tuple(images.shape[-2:])} pixels are too small for this depth: "
                f"they need {self.min_size}, or a smaller depth"
            )
        features: Tensor = self.layers(images.contiguous(memory_format=torch.channels_last))  # (batch, num_features)
        return features


def _block(in_channels: int, out_channels: int, halve: bool) -> nn.Sequential:
    layers: list[nn.Module] = [
        nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
    ]
    return nn.Sequential(*layers, *([nn.MaxPool2d(2)] if halve else []))
