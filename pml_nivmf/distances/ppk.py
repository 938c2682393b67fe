"""Probability product kernels between von Mises-Fisher distributions."""

from typing import Any

from torch import Tensor

from ..checks import check_positive
from ..functional.pairing import Pairing
from ..functional.ppk import ppk_offset, relative_ppk_distance
from ..functional.vmf import mean_resultant_length
from .base import NormCarryingDistance


class PPKDistance(NormCarryingDistance):
    r"""Probability product kernel of order γ between two vMFs with natural parameters z and p:

        d(z, p) = −log ∫ ζ_z(x)^γ ζ_p(x)^γ dx = −γ·(log C(‖z‖) + log C(‖p‖)) + log C(γ·‖z + p‖)

    γ = 1 is the expected likelihood (the paper's d_EL-vMF), γ = ½ the Bhattacharyya kernel (d_B-vMF). Symmetric.

    Args:
        gamma: γ > 0.
    """

    def __init__(self, gamma: float = 1.0, **kwargs: Any):
        super().__init__(**kwargs)
        self.gamma = check_positive("gamma", gamma)
        self.add_to_recordable_attributes(list_of_names=["gamma"], is_stat=False)

    def relative(self, query: Tensor, reference: Tensor, pairing: Pairing) -> Tensor:
        return relative_ppk_distance(query, reference, self.gamma, pairing)

    def offset(self, dim: int) -> float:
        return ppk_offset(self.gamma, dim)

    def slope_per_unit(self, query_concentration: Tensor, dim: int) -> Tensor:
        return self.gamma * mean_resultant_length(self.gamma * query_concentration, dim)
