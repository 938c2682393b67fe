"""Proxy losses with non-isotropic vMF proxies: EL-nivMF, and the distribution-to-point d_nivMF."""

from typing import Any

import torch
from pytorch_metric_learning.distances import BaseDistance
from pytorch_metric_learning.utils import common_functions as c_f
from torch import Tensor

from ..checks import check_option
from ..distances import ExpectedLikelihoodNivMFDistance, NivMFDistance, NivMFReferenceDistance, pack_nivmf
from ..functional.pairing import CROSS
from .base import ProxyLoss


class NonIsotropicVMFLoss(ProxyLoss):
    r"""EL-nivMF: softmax over class proxies that are non-isotropic vMFs, under the expected likelihood.

    An image's embedding z is a vMF with direction z/‖z‖ and concentration ‖z‖; a class is a nivMF ρ_c with mean
    direction μ_c and one concentration per dimension, K_c = diag(κ_c1 … κ_cM):

        L = −log softmax_c(−d(z, ρ_c)/t) at the label,     d(z, ρ) = −log ∫ ζ_z(x)·ρ(x) dx

    Paper: Kirchhof, Roth, Akata, Kasneci, "A Non-isotropic Probabilistic Take on Proxy-based Deep Metric Learning",
    ECCV 2022. Do not normalise embeddings before this loss. How d is computed is an option of the distance. The default
    is a closed-form approximation; ExpectedLikelihoodNivMFDistance(n_samples=5, estimator="monte_carlo") draws samples.

    Args:
        temperature_position: "inside", log E[ρ(x)^{1/t}] (Algorithm 1 of the paper), or "outside", −d/t (its Eq. 6).
            The same for t = 1.

    Other arguments: see `ProxyLoss`.
    """

    distance: NivMFReferenceDistance

    def __init__(self, num_classes: int, embedding_size: int, temperature_position: str = "inside", **kwargs: Any):
        super().__init__(num_classes, embedding_size, **kwargs)
        c_f.assert_distance_type(self, NivMFReferenceDistance)
        self.temperature_position = check_option("temperature_position", temperature_position, ("inside", "outside"))

    def get_default_distance(self) -> BaseDistance:
        return ExpectedLikelihoodNivMFDistance()

    def _references(self, proxies: Tensor, log_concentration: Tensor | None) -> Tensor:
        assert log_concentration is not None
        return pack_nivmf(proxies, torch.exp(log_concentration))

    def _query(self, embeddings: Tensor) -> Tensor:
        return self.distance.draw(embeddings)

    def _logits(self, query: Tensor, proxies: Tensor, log_concentration: Tensor | None) -> Tensor:
        assert log_concentration is not None
        terms = self.distance.terms(proxies, log_concentration.to(proxies.dtype).expand_as(proxies))
        if self.temperature_position == "inside":
            return self.distance.tempered_log_likelihood(query, terms, CROSS, self.temperature)
        return self.distance.tempered_log_likelihood(query, terms, CROSS, 1.0) / self.temperature


class NivMFProxyLoss(NonIsotropicVMFLoss):
    r"""Softmax over nivMF class proxies under the density at the image's direction (the paper's d_nivMF):

        L = −log softmax_c(log ρ_c(z/‖z‖)/t) at the label

    The distribution-to-point member of the paper's ablation: `NonIsotropicVMFLoss` with the default distance
    `NivMFDistance()`, for which images are points. Their norms and `temperature_position` do not matter.
    """

    def get_default_distance(self) -> BaseDistance:
        return NivMFDistance()
