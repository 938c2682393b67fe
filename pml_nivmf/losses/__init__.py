"""Proxy losses, each a PML BaseMetricLossFunction. To add one: a file with a subclass of `ProxyLoss`, its name here."""

from .base import ProxyLoss
from .collectives import GatheredLoss, GatheredMiner
from .embeddings import move_scale_to_head, warm_start_from_loader
from .joint import JointProxyLoss
from .nivmf import NivMFProxyLoss, NonIsotropicVMFLoss
from .parameters import load_whole_state_dict, whole_state_dict
from .softmax import FullSoftmax, SampledSoftmax, ShardedSoftmax
from .vmf import VMFProxyLoss

__all__ = [
    "FullSoftmax",
    "GatheredLoss",
    "GatheredMiner",
    "JointProxyLoss",
    "NivMFProxyLoss",
    "NonIsotropicVMFLoss",
    "ProxyLoss",
    "SampledSoftmax",
    "ShardedSoftmax",
    "VMFProxyLoss",
    "load_whole_state_dict",
    "move_scale_to_head",
    "warm_start_from_loader",
    "whole_state_dict",
]
