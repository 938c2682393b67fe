"""Distances from an image to a non-isotropic vMF: the paper's d_nivMF and d_EL-nivMF."""

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from ..checks import check_count, check_option
from ..functional.nivmf import (
    NORMALIZERS,
    NivMFTerms,
    analytic_log_likelihood,
    monte_carlo_log_likelihood,
    nivmf_terms,
    relative_nivmf_log_density,
)
from ..functional.nivmf_second_order import second_order_log_likelihood
from ..functional.pairing import Pairing, unit_vectors
from ..functional.sampling import sample_vmf
from ..functional.vmf import log_uniform_density, mean_resultant_length
from .base import NormCarryingDistance
from .packing import unpack_nivmf

_ESTIMATORS = {
    "analytic": analytic_log_likelihood,
    "second_order": second_order_log_likelihood,
    "monte_carlo": monte_carlo_log_likelihood,
}


class NivMFReferenceDistance(NormCarryingDistance):
    """A distance whose references are nivMFs: (C, 2M) from `pack_nivmf`, or (C, M) embeddings, read as K = ‖z‖·I."""

    packed_references = True
    uses_query_norm = True

    def __init__(self, normalizer: str = "exact", log_normalizer: str = "exact", **kwargs: Any):
        super().__init__(**kwargs)
        self.normalizer = check_option("normalizer", normalizer, NORMALIZERS)
        self.log_normalizer = check_option("log_normalizer", log_normalizer, ("exact", "paper"))

    @abstractmethod
    def draw(self, query: Tensor) -> Tensor:
        """What stands for the queries in the comparison: their directions, samples, or the queries themselves."""

    @abstractmethod
    def tempered_log_likelihood(
        self, drawn: Tensor, terms: NivMFTerms, pairing: Pairing, temperature: Tensor | float
    ) -> Tensor:
        """log E[ρ(x)^{1/t}] relative to the uniform density, from the result of `draw`; at t = 1 minus the distance."""

    def terms(self, direction: Tensor, log_concentration: Tensor) -> NivMFTerms:
        """What `tempered_log_likelihood` needs of references with these directions, of any length, and log κ_m."""
        return nivmf_terms(direction, log_concentration, self.normalizer, self.log_normalizer)

    def relative(self, query: Tensor, reference: Tensor, pairing: Pairing, whole: bool = True) -> Tensor:
        terms = self.terms(*unpack_nivmf(reference, query.shape[1]))
        return -self.tempered_log_likelihood(self.draw(query), terms, pairing, 1.0)

    def offset(self, dim: int) -> float:
        return -log_uniform_density(dim)

    def set_default_stats(
        self, query_emb: Tensor, ref_emb: Tensor, query_emb_normalized: Tensor, ref_emb_normalized: Tensor
    ) -> None:
        """PML's norm statistics, with κ̃ = ‖Kμ‖ as the norm of a packed reference."""
        if self.collect_stats:
            direction, log_concentration = unpack_nivmf(ref_emb, query_emb.shape[1])
            stretched = direction * log_concentration.exp()
            super().set_default_stats(query_emb, stretched, query_emb_normalized, stretched)


class NivMFDistance(NivMFReferenceDistance):
    r"""Negative log-density of a nivMF at the image's direction, distribution to point (the paper's d_nivMF):

        d(z, ρ) = −log ρ(z/‖z‖),     log ρ(x) = log C_M(κ̃) + log D + κ̃·cos(Kx, Kμ),   κ̃ = ‖Kμ‖

    Args:
        normalizer: "exact" (log D = Σ log κ_m − M·log‖Kx‖, ρ integrates to one), "paper" (Σ log κ_m − log κ̃) or "none"
            (log D = 0).
        log_normalizer: "exact", or "paper" for the paper's quadratic fits of log C_M(κ̃); see `PPKDistance`.
    """

    uses_query_norm = False

    def draw(self, query: Tensor) -> Tensor:
        # A zero vector has no direction: the diagonal stands for it, where ‖Kx‖² is the mean over all directions.
        zero = torch.linalg.vector_norm(query.detach(), dim=-1, keepdim=True) == 0
        return torch.where(zero, query.shape[-1] ** -0.5, unit_vectors(query))

    def tempered_log_likelihood(
        self, drawn: Tensor, terms: NivMFTerms, pairing: Pairing, temperature: Tensor | float
    ) -> Tensor:
        return relative_nivmf_log_density(drawn, terms, pairing) / temperature

    def slope_per_unit(self, query_concentration: Tensor, dim: int) -> Tensor:
        return torch.ones_like(query_concentration)


class ExpectedLikelihoodNivMFDistance(NivMFReferenceDistance):
    r"""Negative log expected likelihood of an image's vMF under a nivMF (the paper's d_EL-nivMF):

        d(z, ρ) = −log ∫ ζ_z(x)·ρ(x) dx

    Args:
        n_samples: Monte-Carlo samples N per image; all references see the same samples. More than 5 gained nothing.
        normalizer: "exact" (ρ integrates to one), "paper" (the paper's heuristic) or "none"; see `NivMFDistance`.
        estimator: "analytic" is a closed-form approximation: ‖Kx‖² is replaced by its mean. It has no noise, is N times
            cheaper and equals d_EL-vMF for K = c·I. "second_order" is a closer approximation for the exact normalizer:
            it also takes account of the variance of log ‖Kx‖². "monte_carlo" is −log (1/N)·Σ_i ρ(z_i), z_i ~ ζ_z, as in
            the paper: reparametrised, noisy and biased upwards.
        antithetic: draw samples in pairs with opposite tangents: less noise at the same cost.
        log_normalizer: "exact", or "paper" for the paper's quadratic fits of log C_M(κ̃); see `PPKDistance`.

    The error of the closed forms at M = 128, ‖z‖ = M/4 … 16·M, against importance sampling: root mean square of the
    centred error over the standard deviation over proxies, for a coefficient of variation of κ of 0.05, 0.1, 0.2. The
    larger errors are those of small ‖z‖. For other M see experiment_configs/results/closed_form_error.md.

    - "analytic", normalizer="exact": 0.4–11%, 1–25%, 5–79%, because the variance of −M·log‖Kx‖ is left out.
    - "analytic", normalizer="paper": 0.01–2.4%, 0.02–6.6%, 0.1–27%.
    - "second_order": 0.1–0.3%, 0.3–1.3%, 1.3–6.6%, in 1.6 to 1.9 times the time of "analytic" with 100 classes and 2.5
      times with 11,000.
    """

    def __init__(
        self,
        n_samples: int = 5,
        normalizer: str = "exact",
        estimator: str = "analytic",
        antithetic: bool = True,
        **kwargs: Any,
    ):
        super().__init__(normalizer=normalizer, **kwargs)
        if estimator == "second_order" and normalizer != "exact":
            raise ValueError(f'estimator="second_order" needs normalizer="exact", got {normalizer!r}: use "analytic"')
        self.n_samples = check_count("n_samples", n_samples, at_least=1)
        self.estimator = check_option("estimator", estimator, tuple(_ESTIMATORS))
        self.antithetic = antithetic
        self.add_to_recordable_attributes(list_of_names=["n_samples"], is_stat=False)

    def draw(self, query: Tensor) -> Tensor:
        if self.estimator != "monte_carlo":
            return query
        return sample_vmf(query, (self.n_samples,), antithetic=self.antithetic)

    def tempered_log_likelihood(
        self, drawn: Tensor, terms: NivMFTerms, pairing: Pairing, temperature: Tensor | float
    ) -> Tensor:
        return _ESTIMATORS[self.estimator](drawn, terms, pairing, temperature)

    def slope_per_unit(self, query_concentration: Tensor, dim: int) -> Tensor:
        return mean_resultant_length(query_concentration, dim)
