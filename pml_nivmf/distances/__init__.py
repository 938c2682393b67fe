"""Distances between distributions, each a PML BaseDistance: imports functional, distributions and PML.

To add one: a file with a subclass of `NormCarryingDistance`, its formula in `functional`, and its name here.
"""

from .base import NormCarryingDistance
from .bhattacharyya import BhattacharyyaDistance
from .expected_likelihood import ExpectedLikelihoodDistance
from .expected_likelihood_nivmf import ExpectedLikelihoodNivMFDistance
from .kl import KLDistance
from .nivmf import NivMFDistance, NivMFReferenceDistance
from .packing import pack_nivmf
from .ppk import PPKDistance

__all__ = [
    "BhattacharyyaDistance",
    "ExpectedLikelihoodDistance",
    "ExpectedLikelihoodNivMFDistance",
    "KLDistance",
    "NivMFDistance",
    "NivMFReferenceDistance",
    "NormCarryingDistance",
    "PPKDistance",
    "pack_nivmf",
]
