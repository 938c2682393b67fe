"""The paper's d_EL-nivMF."""

from typing import Any

from torch import Tensor

from ..functional.nivmf import NivMFTerms, analytic_log_likelihood, monte_carlo_log_likelihood
from ..functional.pairing import Pairing
from ..functional.sampling import sample_vmf
from ..functional.vmf import mean_resultant_length
from .nivmf import NivMFReferenceDistance

ESTIMATORS = ("monte_carlo", "analytic")


class ExpectedLikelihoodNivMFDistance(NivMFReferenceDistance):
    r"""Negative log expected likelihood of an image's vMF under a nivMF (the paper's d_EL-nivMF):

        d(z, ρ) = −log ∫ ζ_z(x)·ρ(x) dx

    References are (C, 2M) from `pack_nivmf`; a plain (C, M) embedding is read as the vMF it is, K = ‖z‖·I.

    Args:
        n_samples: Monte-Carlo samples N per image; all references see the same samples.
        normalizer: "exact" (ρ integrates to one) or "paper" (the paper's heuristic).
        estimator: "monte_carlo" is −log (1/N)·Σ_i ρ(z_i), z_i ~ ζ_z, reparametrised: noisy and biased upwards.
            "analytic" replaces ‖Kx‖² by its mean, which leaves a closed form: no noise, N times cheaper, equal to
            d_EL-vMF for K = c·I.
        antithetic: draw samples in pairs with opposite tangents.
    """

    def __init__(
        self,
        n_samples: int = 10,
        normalizer: str = "exact",
        estimator: str = "monte_carlo",
        antithetic: bool = True,
        **kwargs: Any,
    ):
        super().__init__(normalizer=normalizer, **kwargs)
        if estimator not in ESTIMATORS:
            raise ValueError(f'estimator must be "monte_carlo" or "analytic", got {estimator!r}')
        if isinstance(n_samples, bool) or not isinstance(n_samples, int) or n_samples < 1:
            raise ValueError(f"n_samples must be an integer of at least 1, got {n_samples!r}")
        self.n_samples = n_samples
        self.estimator = estimator
        self.antithetic = antithetic
        self.add_to_recordable_attributes(list_of_names=["n_samples"], is_stat=False)

    def draw(self, query: Tensor) -> Tensor:
        if self.estimator == "analytic":
            return query
        return sample_vmf(query, (self.n_samples,), antithetic=self.antithetic)

    def tempered_log_likelihood(
        self, drawn: Tensor, terms: NivMFTerms, pairing: Pairing, temperature: Tensor | float
    ) -> Tensor:
        estimate = analytic_log_likelihood if self.estimator == "analytic" else monte_carlo_log_likelihood
        return estimate(drawn, terms, pairing, temperature)

    def slope_per_unit(self, query_concentration: Tensor, dim: int) -> Tensor:
        return mean_resultant_length(query_concentration, dim)
