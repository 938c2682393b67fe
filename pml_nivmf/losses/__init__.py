"""Proxy losses, each a PML BaseMetricLossFunction: imports distances, functional and PML.

To add one: a file with a subclass of `ProxyLoss` and its name here.
"""

from .base import ProxyLoss
from .embedding_scale import calibrate_head
from .gathered import GatheredLoss, GatheredMiner
from .joint import JointProxyLoss
from .nivmf import NivMFProxyLoss, NonIsotropicVMFLoss
from .sharded_state import load_whole_state_dict, whole_state_dict
from .vmf import VMFProxyLoss
from .warm_start import can_warm_start, move_scale_to_head, warm_start_from_loader

__all__ = [
    "GatheredLoss",
    "GatheredMiner",
    "JointProxyLoss",
    "NivMFProxyLoss",
    "NonIsotropicVMFLoss",
    "ProxyLoss",
    "VMFProxyLoss",
    "calibrate_head",
    "can_warm_start",
    "load_whole_state_dict",
    "move_scale_to_head",
    "warm_start_from_loader",
    "whole_state_dict",
]
