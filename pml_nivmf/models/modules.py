"""A small convolutional trunk, and modules that take features."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..checks import check_count, check_option, check_positive

_COSINES = 0.05, 0.98  # of an image and its class; outside, the logarithm of the concentration would have no bounds
_POOLINGS = {"max": nn.AdaptiveMaxPool2d, "avg": nn.AdaptiveAvgPool2d}


class ConvNet(nn.Module):
    """Blocks of convolution, batch norm, ReLU and 2×2 max pooling, then pooling over the whole image.

    (batch, in_channels, height, width) -> (batch, 2·width), for images of 28 to 32 pixels, from scratch on a CPU. Early
    blocks, where images are large, are narrow: width/4, width/2, width, …, and 2·width for the last block.

    in_channels: 1 for grey images, 3 for colour images.
    width: scales the channels of all blocks, at least 4; num_features = 2·width.
    depth: the number of blocks; images need at least 2^(depth-1) pixels on each side.
    pooling: over the whole image, "max" or "avg".
    """

    def __init__(self, in_channels: int = 1, width: int = 64, depth: int = 3, pooling: str = "max") -> None:
        super().__init__()
        check_count("in_channels", in_channels)
        check_count("width", width, at_least=4)
        check_count("depth", depth)
        check_option("pooling", pooling, tuple(_POOLINGS))
        self.num_features = 2 * width
        channels = [in_channels, *((width << i) // 4 for i in range(depth - 1)), self.num_features]
        blocks = [_block(channels[i], channels[i + 1], halve=i < depth - 1) for i in range(depth)]
        self.layers = nn.Sequential(*blocks, _POOLINGS[pooling](1), nn.Flatten())
        self.to(memory_format=torch.channels_last)  # 1.5 times as fast on a CPU

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.layers(images.contiguous(memory_format=torch.channels_last))  # (batch, num_features)
        return features


def _block(in_channels: int, out_channels: int, halve: bool) -> nn.Sequential:
    convolution = nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1, bias=False)
    layers: list[nn.Module] = [convolution, nn.BatchNorm2d(out_channels), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, *([nn.MaxPool2d(2)] if halve else []))


class EmbeddingHead(nn.Linear):
    """z = s·exp⟨v, f − f₀⟩·(W·f + b), not normalised: ‖z‖ is the concentration of the image's vMF distribution.

    s, v and f₀ are buffers. A loss that uses norms sets s, initially 1, for the norms that it should start with, see
    `losses.move_scale_to_head`; `fit_norms` sets v and f₀, initially 0, after training.

    in_features: the trunk's num_features.
    embedding_size: M, the width of the embeddings.
    """

    scale: Tensor
    norm_weight: Tensor  # v
    norm_origin: Tensor  # f₀

    def __init__(self, in_features: int, embedding_size: int) -> None:
        check_count("in_features", in_features)
        super().__init__(in_features, check_count("embedding_size", embedding_size))
        self.register_buffer("scale", torch.tensor(1.0))
        for name in ("norm_weight", "norm_origin"):
            self.register_buffer(name, torch.zeros(in_features))

    def forward(self, features: Tensor) -> Tensor:
        logarithm = ((features - self.norm_origin) * self.norm_weight).sum(dim=-1, keepdim=True)
        return super().forward(features) * (self.scale * torch.exp(logarithm))

    @torch.no_grad()
    def fit_norms(self, features: Tensor, degraded: Tensor, labels: Tensor, ridge: float = 0.5) -> None:
        r"""Let norms say how close an image is to its class. Directions, and so retrieval by cosine, do not change.

        A vMF with a mean cosine of c to its mean direction has a concentration of about M·c/(1 − c²). With the cosine c
        of an image and the mean of the other images of its class, v minimises

            Var(log c/(1 − c²) − log‖W·f + b‖ − ⟨v, f⟩) + λ·‖v‖²·E‖f − f₀‖²/D

        features: of training images, (n, D), from the trained trunk in evaluation mode.
        degraded: of the same images, with less to see, (n, D); f₀ is the mean of both, so the mean of log‖z‖ stays.
        labels: their classes, (n,). Classes of one image are left out.
        ridge: λ. More of it predicts right retrievals a little better, less gives more degraded images a smaller norm.
        """
        _, classes, counts = labels.unique(return_inverse=True, return_counts=True)
        if not (known := counts[classes] > 1).any():
            raise ValueError("labels have one image of each class: no norms can be fitted")
        classes, inputs = classes[known], torch.stack([features, degraded])[:, known]
        embeddings = super().forward(inputs)  # (2, n, M)
        units = F.normalize(embeddings, dim=-1)
        others = units.new_zeros(len(counts), self.out_features).index_add(0, classes, units[0])[classes] - units[0]
        cosine = F.cosine_similarity(units, others, dim=-1).clamp(*_COSINES)
        tiny = torch.finfo(units.dtype).tiny
        log_norm = torch.linalg.vector_norm(embeddings, dim=-1).clamp_min(tiny).log()
        target = (cosine.logit() - cosine.log1p() - log_norm).flatten()
        self.norm_origin.copy_(inputs.mean(dim=(0, 1)))
        inputs = inputs.flatten(0, 1) - self.norm_origin
        moment = (inputs.T @ inputs).double()
        moment.diagonal().add_(check_positive("ridge", ridge) * moment.diagonal().mean().clamp_min(tiny))
        self.norm_weight.copy_(torch.linalg.solve(moment, (inputs.T @ (target - target.mean())).double()))


class Identity(nn.Identity):
    """Returns features (batch, num_features) unchanged.

    num_features: their width.
    """

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = check_count("num_features", num_features)
