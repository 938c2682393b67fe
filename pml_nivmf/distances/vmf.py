"""Distances between von Mises-Fisher distributions: probability product kernels and the KL divergence."""

from typing import Any

import torch
from torch import Tensor

from ..checks import check_option, check_positive
from ..functional.pairing import Pairing
from ..functional.vmf import kl_distance, log_uniform_density, mean_resultant_length, relative_ppk_distance
from .base import NormCarryingDistance


class PPKDistance(NormCarryingDistance):
    r"""Probability product kernel of order γ between two vMFs with natural parameters z and p:

        d(z, p) = −log ∫ ζ_z(x)^γ ζ_p(x)^γ dx = −γ·(log C(‖z‖) + log C(‖p‖)) + log C(γ·‖z + p‖)

    γ = 1 is the expected likelihood (the paper's d_EL-vMF), γ = ½ the Bhattacharyya kernel (d_B-vMF). Symmetric.

    Args:
        gamma: γ > 0.
        log_normalizer: "exact", or "paper" for the paper's quadratic fits of log C, which exist for M = 128 and 512
            only and are far off where concentrations are large: to reproduce the paper, not to train with.
    """

    def __init__(self, gamma: float = 1.0, log_normalizer: str = "exact", **kwargs: Any):
        super().__init__(**kwargs)
        self.gamma = check_positive("gamma", gamma)
        self.log_normalizer = check_option("log_normalizer", log_normalizer, ("exact", "paper"))
        self.add_to_recordable_attributes(list_of_names=["gamma"], is_stat=False)

    def relative(self, query: Tensor, reference: Tensor, pairing: Pairing, whole: bool = True) -> Tensor:
        return relative_ppk_distance(query, reference, self.gamma, pairing, whole, self.log_normalizer)

    def offset(self, dim: int) -> float:
        return (1 - 2 * self.gamma) * log_uniform_density(dim)

    def slope_per_unit(self, query_concentration: Tensor, dim: int) -> Tensor:
        return self.gamma * mean_resultant_length(self.gamma * query_concentration, dim)


class ExpectedLikelihoodDistance(PPKDistance):
    r"""Negative log expected likelihood of two vMFs, the PPK of order 1 (the paper's d_EL-vMF):

    d(z, p) = −log ∫ ζ_z(x)·ζ_p(x) dx = −log C(‖z‖) − log C(‖p‖) + log C(‖z + p‖)
    """

    def __init__(self, **kwargs: Any):
        super().__init__(gamma=1.0, **kwargs)


class BhattacharyyaDistance(PPKDistance):
    r"""Bhattacharyya distance of two vMFs, the PPK of order ½ (the paper's d_B-vMF). It is ≥ 0, and 0 for z = p:

    d(z, p) = −log ∫ √(ζ_z(x)·ζ_p(x)) dx = −½·(log C(‖z‖) + log C(‖p‖)) + log C(½·‖z + p‖)
    """

    def __init__(self, **kwargs: Any):
        super().__init__(gamma=0.5, **kwargs)


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
