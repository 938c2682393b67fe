"""Distances from an image to a non-isotropic vMF: the shared handling of packed references, and the paper's d_nivMF."""

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from ..checks import check_option
from ..functional.nivmf import NORMALIZERS, NivMFTerms, nivmf_terms, relative_nivmf_log_density
from ..functional.pairing import Pairing, unit_vectors
from ..functional.vmf import log_uniform_density
from .base import NormCarryingDistance
from .packing import unpack_nivmf


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
