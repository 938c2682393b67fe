"""Proxy loss over any distance between two vectors: the paper's EL-vMF, B-vMF and KL-vMF, Cos and L2."""

import math
from typing import Any

import torch
from pytorch_metric_learning.distances import BaseDistance
from torch import Tensor, nn

from ..checks import check_option, check_positive
from ..distances import ExpectedLikelihoodDistance, NormCarryingDistance
from ..functional.pairing import CROSS, detach_zero_rows, unit_vectors
from .base import STARTING_COSINE_SCALE, ProxyLoss, starting_concentration
from .embedding_scale import starting_norm


class VMFProxyLoss(ProxyLoss):
    r"""Softmax over class proxies under a distance between vMF distributions, in the form of ProxyNCA++:

        L = −log softmax_c(−d(z, κ_c·μ_c)/t) at the label

    Any distance of ours or of PML serves: `ExpectedLikelihoodDistance()` (EL-vMF, the default),
    `BhattacharyyaDistance()` (B-vMF), `KLDistance()` (KL-vMF), PML's `CosineSimilarity()` (Cos, ProxyNCA++) and
    `LpDistance(normalize_embeddings=False, power=2)` (L2). Where the distance uses norms, each proxy has a learnable
    concentration κ_c and enters as κ_c·μ_c; where it normalises, there is none.

    Args:
        num_classes: number of classes C.
        embedding_size: M.
        distance: any PML distance, inverted or not.
        temperature: initial t > 0.
        learnable_temperature: whether t is trained.
        initial_concentration: κ_c at the start; None chooses it so that the softmax starts at a cosine scale of 16 for
            distances between distributions and for squared L2; other distances start at √(8t).
        concentration: "per_class", one κ_c a class, or "shared", one for all.
        embedding_scale: factor on the embeddings; "auto" sets it at warm start or on the first training batch so that
            the mean norm starts at 4·M (distances between distributions) or √(8t) (other distances that use norms).
        chunk_size: classes computed at a time; None computes all at once.
        **kwargs: PML's `reducer`, `weight_regularizer`, `embedding_regularizer`, `weight_init_func`, …

    Needs an optimizer: the proxies, concentrations and temperature are parameters (see `param_groups`).
    Default distance: ExpectedLikelihoodDistance. Default reducer: MeanReducer. Reducer input: loss per element.
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        distance: BaseDistance | None = None,
        temperature: float = 1.0,
        learnable_temperature: bool = True,
        initial_concentration: float | None = None,
        concentration: str = "per_class",
        embedding_scale: float | str = "auto",
        chunk_size: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(
            num_classes,
            embedding_size,
            distance=distance,
            temperature=temperature,
            learnable_temperature=learnable_temperature,
            embedding_scale=embedding_scale,
            chunk_size=chunk_size,
            **kwargs,
        )
        check_option("concentration", concentration, ("per_class", "shared"))
        if self._uses_norms():
            start = self._starting_concentration() if initial_concentration is None else initial_concentration
            start = check_positive("initial_concentration", start)
            rows = num_classes if concentration == "per_class" else 1
            self.log_concentration = nn.Parameter(torch.full((rows, 1), math.log(start)))
        elif initial_concentration is not None:
            name = type(self.distance).__name__
            raise ValueError(f"initial_concentration has no meaning here: {name} normalises the proxies")

    @property
    def concentration(self) -> Tensor | None:
        """κ_c, (C, 1), or None where the distance normalises."""
        return torch.exp(self.log_concentration).expand(self.num_classes, 1) if self._uses_norms() else None

    def get_default_distance(self) -> BaseDistance:
        return ExpectedLikelihoodDistance()

    def _uses_norms(self) -> bool:
        return not self.distance.normalize_embeddings

    def _starting_norm(self) -> float | None:
        if isinstance(self.distance, NormCarryingDistance):
            return starting_norm(self.embedding_size)
        # ‖ν_z − ν_p‖² = 2n²(1 − cos) for equal norms n.
        return math.sqrt(STARTING_COSINE_SCALE / 2 * self.initial_temperature) if self._uses_norms() else None

    def _starting_concentration(self) -> float:
        norm = self._starting_norm()
        assert norm is not None
        if not isinstance(self.distance, NormCarryingDistance):
            return norm
        slope = self.distance.slope_per_unit(torch.tensor(norm), self.embedding_size)
        return starting_concentration(slope, self.initial_temperature)

    def _class_parameters(self) -> tuple[Tensor, ...]:
        if not self._uses_norms():
            return (self.proxies,)
        return self.proxies, self.log_concentration.expand(self.num_classes, 1)

    def _query(self, embeddings: Tensor) -> Tensor:
        return embeddings

    def _logits(self, query: Tensor, *class_parameters: Tensor) -> Tensor:
        proxies, *log_concentration = class_parameters
        if log_concentration:
            proxies = unit_vectors(proxies) * torch.exp(log_concentration[0])
        if isinstance(self.distance, NormCarryingDistance):
            self.distance.set_default_stats(query, proxies, query, proxies)
            distances = self.distance.relative(query, proxies, CROSS)
        else:
            distances = self.distance(query if log_concentration else detach_zero_rows(query), proxies)
        return (distances if self.distance.is_inverted else -distances) / self.temperature
