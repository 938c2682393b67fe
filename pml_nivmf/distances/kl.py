"""The paper's d_KL-vMF."""

from typing import Any

import torch
from torch import Tensor

from ..checks import check_option
from ..functional.pairing import Pairing
from ..functional.ppk import kl_distance
from ..functional.vmf import mean_resultant_length
from .base import NormCarryingDistance


class KLDistance(NormCarryingDistance):
    r"""Kullback-Leibler divergence of the reference's vMF from the query's (the paper's d_KL-vMF):

        d(z, p) = KL(ζ_z ‖ ζ_p) = log C(‖z‖) − log C(‖p‖) + A_M(‖z‖)·(‖z‖ − ‖p‖·cos(z, p))

    ≥ 0 and not symmetric: queries first, references second.

    Args:
        form: "exact", or "paper", which drops the factor A_M(‖z‖) as the paper prints it.
        log_normalizer: "exact", or "paper" for the paper's quadratic fits of log C; see `PPKDistance`.
    """

    def __init__(self, form: str = "exact", log_normalizer: str = "exact", **kwargs: Any):
        super().__init__(**kwargs)
        self.form = check_option("form", form, ("exact", "paper"))
        self.log_normalizer = check_option("log_normalizer", log_normalizer, ("exact", "paper"))

    def relative(self, query: Tensor, reference: Tensor, pairing: Pairing, whole: bool = True) -> Tensor:
        return kl_distance(query, reference, self.form, pairing, whole, self.log_normalizer)

    def offset(self, dim: int) -> float:
        return 0.0

    def slope_per_unit(self, query_concentration: Tensor, dim: int) -> Tensor:
        if self.form == "paper":
            return torch.ones_like(query_concentration)
        return mean_resultant_length(query_concentration, dim)
