"""Distances between distributions: to add one, write a subclass of `NormCarryingDistance` and add its name here."""

from .base import NormCarryingDistance
from .nivmf import ExpectedLikelihoodNivMFDistance, NivMFDistance, NivMFReferenceDistance
from .packing import pack_nivmf
from .vmf import BhattacharyyaDistance, ExpectedLikelihoodDistance, KLDistance, PPKDistance

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
