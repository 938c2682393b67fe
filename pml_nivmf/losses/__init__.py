"""Proxy losses, each a PML BaseMetricLossFunction: imports distances, functional and PML.

To add one: a file with a subclass of `ProxyLoss` and its name here.
"""

from .base import ProxyLoss
from .embedding_scale import calibrate_head
from .joint import JointProxyLoss
from .nivmf import NivMFProxyLoss, NonIsotropicVMFLoss
from .vmf import VMFProxyLoss
from .warm_start import warm_start_from_loader

__all__ = [
    "JointProxyLoss",
    "NivMFProxyLoss",
    "NonIsotropicVMFLoss",
    "ProxyLoss",
    "VMFProxyLoss",
    "calibrate_head",
    "warm_start_from_loader",
]
