"""Proxy loss over any distance between two vectors: EL-vMF, B-vMF and KL-vMF of the paper, Cos and L2."""

import torch
from pytorch_metric_learning.distances import BaseDistance
from torch import Tensor

from ..distances import ExpectedLikelihoodDistance, NormCarryingDistance
from ..functional.pairing import CROSS, detach_zero_rows, unit_vectors
from .base import ProxyLoss


class VMFProxyLoss(ProxyLoss):
    r"""Softmax over class proxies under a distance between vMF distributions, in the form of ProxyNCA++:

        L = −log softmax_c(−d(z, κ_c·μ_c)/t) at the label

    `distance` is any distance of this package or of PML: `ExpectedLikelihoodDistance()` (EL-vMF, the default),
    `BhattacharyyaDistance()` (B-vMF), `KLDistance()` (KL-vMF), PML's `CosineSimilarity()` (Cos, ProxyNCA++) or
    `LpDistance(normalize_embeddings=False, power=2)` (L2). If the distance uses norms, each proxy has one learnable
    concentration κ_c; if it normalises, there is none. Distances that use norms but are not between distributions, such
    as L2, start with ‖z‖ = √(cosine_scale·t/2) and, unless `initial_concentration` is given, κ_c = ‖z‖.

    Arguments: see `ProxyLoss`.
    """

    def get_default_distance(self) -> BaseDistance:
        return ExpectedLikelihoodDistance()

    def _references(self, proxies: Tensor, log_concentration: Tensor | None) -> Tensor:
        if log_concentration is None:
            return proxies
        return unit_vectors(proxies) * torch.exp(log_concentration.to(proxies.dtype))

    def _query(self, embeddings: Tensor) -> Tensor:
        return detach_zero_rows(embeddings) if self.distance.normalize_embeddings else embeddings

    def _logits(self, query: Tensor, proxies: Tensor, log_concentration: Tensor | None) -> Tensor:
        references = self._references(proxies, log_concentration)
        if isinstance(self.distance, NormCarryingDistance):  # precise at small temperatures
            distances = self.distance.relative(query, references, CROSS, whole=False)
        else:
            distances = self.distance(query, references)
        return (distances if self.distance.is_inverted else -distances) / self.temperature
