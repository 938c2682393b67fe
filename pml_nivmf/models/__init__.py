"""Trunks and heads: imports torch, timm and torchvision.

Every trunk is an nn.Module that maps a batch to flat features (batch, num_features), `num_features` an int attribute.
To add one: a file with the class and its name here.
"""

from .batch_norm import freeze_batch_norm
from .conv_net import ConvNet
from .embedding_head import EmbeddingHead
from .identity import Identity
from .timm_trunk import TimmTrunk
from .torchvision_trunk import TorchvisionTrunk

__all__ = [
    "ConvNet",
    "EmbeddingHead",
    "Identity",
    "TimmTrunk",
    "TorchvisionTrunk",
    "freeze_batch_norm",
]
