"""Proxy loss over any distance between two vectors: the paper's EL-vMF, B-vMF and KL-vMF, Cos and L2."""

import math
from typing import Any

import torch
from pytorch_metric_learning.distances import BaseDistance
from torch import Tensor

from ..checks import check_positive
from ..distances import ExpectedLikelihoodDistance, NormCarryingDistance
from ..functional.pairing import CROSS, detach_zero_rows, unit_vectors
from .base import STARTING_COSINE_SCALE, ProxyLoss, starting_concentration
from .embedding_scale import CONCENTRATION_PER_DIMENSION, starting_norm


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
        concentration: "per_class", one κ_c a class; "shared", one for all; or "shared_plus_deviation":
            log κ_c = log κ_shared + δ_c with deviations δ_c that start at zero and that a penalty draws back to it.
        embedding_scale: factor on the embeddings; "auto" sets it at warm start or on the first training batch so that
            the mean norm starts at 4·M (distances between distributions) or √(8t) (other distances that use norms).
        initial_norm_per_dim: what "auto" brings the mean ‖z‖/M to, for distances between distributions.
        chunk_size: classes computed at a time, and again in the backward: memory beyond parameters and gradients is
            that of one chunk; only regularizers take all rows. None computes all at once.
        negative_samples: in training, compare with the batch's classes and this many others, drawn anew for each
            batch; the others' logits are raised by the logarithm of the inverse sampling rate. None: with all.
        sparse: with negative_samples, gradients of proxies and concentrations are sparse, for torch.optim.SparseAdam:
            a step then costs nothing for classes that were not drawn (see `param_groups`).
        sharded: each rank of a distributed training owns C/K of the classes: `proxies` and concentrations have their
            rows only. Wrap the loss in DistributedDataParallel as the model; see `whole_state_dict`.
        concentration_regularizer: the penalty on δ, any PML regularizer that is least at zero, such as
            LpRegularizer(); None: mean(δ²). It is added to the loss as a PML sub-loss of its own,
            "concentration_reg_loss", as `weight_regularizer` is.
        concentration_reg_weight: λ ≥ 0, the penalty's factor.
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
        initial_norm_per_dim: float = CONCENTRATION_PER_DIMENSION,
        chunk_size: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(
            num_classes,
            embedding_size,
            distance=distance,
            temperature=temperature,
            learnable_temperature=learnable_temperature,
            concentration=concentration,
            embedding_scale=embedding_scale,
            initial_norm_per_dim=initial_norm_per_dim,
            chunk_size=chunk_size,
            **kwargs,
        )
        if self._uses_norms():
            start = self._starting_concentration() if initial_concentration is None else initial_concentration
            self._set_concentrations(check_positive("initial_concentration", start), len(self.proxies), 1)
        elif initial_concentration is not None or concentration == "shared_plus_deviation":
            option = "initial_concentration" if initial_concentration is not None else "concentration"
            raise ValueError(f"{option} has no meaning here: {type(self.distance).__name__} normalises the proxies")

    @property
    def concentration(self) -> Tensor | None:
        """κ_c, (C, 1), or None where the distance normalises."""
        if not self._uses_norms():
            return None
        return torch.exp(self._log_concentration_of(*self._concentration_rows())).expand(len(self.proxies), 1)

    def get_default_distance(self) -> BaseDistance:
        return ExpectedLikelihoodDistance()

    def _uses_norms(self) -> bool:
        return not self.distance.normalize_embeddings

    def _starting_norm(self) -> float | None:
        if isinstance(self.distance, NormCarryingDistance):
            return starting_norm(self.embedding_size, self.initial_norm_per_dim)
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
        return self.proxies, *self._concentration_rows()

    def _query(self, embeddings: Tensor) -> Tensor:
        return embeddings

    def _logits(self, query: Tensor, *class_parameters: Tensor) -> Tensor:
        proxies, *rows = class_parameters
        if self._uses_norms():
            proxies = unit_vectors(proxies) * torch.exp(self._log_concentration_of(*rows).to(proxies.dtype))
        if isinstance(self.distance, NormCarryingDistance):
            self.distance.set_default_stats(query, proxies, query, proxies)
            distances = self.distance.relative(query, proxies, CROSS, whole=False)
        else:
            distances = self.distance(query if self._uses_norms() else detach_zero_rows(query), proxies)
        return (distances if self.distance.is_inverted else -distances) / self.temperature
