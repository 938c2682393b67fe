"""The paper's d_B-vMF."""

from typing import Any

from .ppk import PPKDistance


class BhattacharyyaDistance(PPKDistance):
    r"""Bhattacharyya distance of two vMFs, the PPK of order ½ (the paper's d_B-vMF). It is ≥ 0, and 0 for z = p:

    d(z, p) = −log ∫ √(ζ_z(x)·ζ_p(x)) dx = −½·(log C(‖z‖) + log C(‖p‖)) + log C(½·‖z + p‖)
    """

    def __init__(self, **kwargs: Any):
        super().__init__(gamma=0.5, **kwargs)
