"""The paper's d_EL-vMF."""

from typing import Any

from .ppk import PPKDistance


class ExpectedLikelihoodDistance(PPKDistance):
    r"""Negative log expected likelihood of two vMFs, the PPK of order 1 (the paper's d_EL-vMF):

    d(z, p) = −log ∫ ζ_z(x)·ζ_p(x) dx = −log C(‖z‖) − log C(‖p‖) + log C(‖z + p‖)
    """

    def __init__(self, **kwargs: Any):
        super().__init__(gamma=1.0, **kwargs)
