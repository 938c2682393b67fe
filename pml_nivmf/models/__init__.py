"""Trunks and heads. Imports timm and torchvision.

A trunk is an nn.Module that maps a batch to features (batch, num_features) and has `num_features` as an int attribute.
To add one, write the class and add its name here.
"""

from .modules import ConvNet, EmbeddingHead, Identity
from .pretrained import TimmTrunk, TorchvisionTrunk

__all__ = ["ConvNet", "EmbeddingHead", "Identity", "TimmTrunk", "TorchvisionTrunk"]
