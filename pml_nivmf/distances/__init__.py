"""Distances between distributions: to add one, write a subclass of `NormCarryingDistance` and add its name here."""

from .base import NormCarryingDistance
from .expected_likelihood_nivmf import ExpectedLikelihoodNivMFDistance
from .kl import KLDistance
from .nivmf import NivMFDistance, NivMFReferenceDistance
from .packing import pack_nivmf
from .ppk import BhattacharyyaDistance, ExpectedLikelihoodDistance, PPKDistance

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
