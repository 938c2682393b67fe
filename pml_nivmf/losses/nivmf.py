"""Proxy losses with non-isotropic vMF proxies: EL-nivMF, and the distribution-to-point d_nivMF."""

from typing import Any

import torch
from torch import Tensor

from ..checks import check_option, check_positive
from ..distances import ExpectedLikelihoodNivMFDistance, NivMFDistance, NivMFReferenceDistance
from ..functional.nivmf import nivmf_terms
from ..functional.pairing import CROSS
from .base import ProxyLoss, starting_concentration
from .embedding_scale import CONCENTRATION_PER_DIMENSION, starting_norm


class NivMFSoftmaxLoss(ProxyLoss):
    """What the nivMF losses share: one concentration per dimension, and the temperature inside or outside."""

    distance: NivMFReferenceDistance

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        distance: NivMFReferenceDistance,
        initial_concentration: float | None,
        temperature_position: str,
        **kwargs: Any,
    ):
        super().__init__(num_classes, embedding_size, distance=distance, **kwargs)
        self.temperature_position = check_option("temperature_position", temperature_position, ("inside", "outside"))
        if initial_concentration is None:
            norm = starting_norm(embedding_size, self.initial_norm_per_dim)
            slope = distance.slope_per_unit(torch.tensor(norm), embedding_size)
            initial_concentration = starting_concentration(slope, self.initial_temperature)
        start = check_positive("initial_concentration", initial_concentration)
        self._set_concentrations(start, len(self.proxies), embedding_size)

    @property
    def concentration(self) -> Tensor:
        """κ_m of every class, (C, M)."""
        return torch.exp(self._log_concentration_of(*self._concentration_rows())).expand_as(self.proxies)

    def _class_parameters(self) -> tuple[Tensor, ...]:
        return self.proxies, *self._concentration_rows()

    def _query(self, embeddings: Tensor) -> Tensor:
        return self.distance.draw(embeddings)

    def _logits(self, query: Tensor, *class_parameters: Tensor) -> Tensor:
        proxies, *rows = class_parameters
        log_concentration = self._log_concentration_of(*rows).to(proxies.dtype).expand_as(proxies)
        terms = nivmf_terms(proxies, log_concentration, self.distance.normalizer)
        if self.temperature_position == "inside":
            return self.distance.tempered_log_likelihood(query, terms, CROSS, self.temperature)
        return self.distance.tempered_log_likelihood(query, terms, CROSS, 1.0) / self.temperature


class NonIsotropicVMFLoss(NivMFSoftmaxLoss):
    r"""EL-nivMF: softmax over class proxies that are non-isotropic vMFs, under the expected likelihood.

    An image's embedding z is a vMF with direction z/‖z‖ and concentration ‖z‖; a class is a nivMF ρ_c with mean
    direction μ_c and one concentration per dimension, K_c = diag(κ_c1 … κ_cM):

        L = −log softmax_c(−d(z, ρ_c)/t) at the label,     d(z, ρ) = −log ∫ ζ_z(x)·ρ(x) dx

    Paper: Kirchhof, Roth, Akata, Kasneci, "A Non-isotropic Probabilistic Take on Proxy-based Deep Metric Learning",
    ECCV 2022. Do not normalise embeddings before this loss.

    Args:
        num_classes: number of classes C.
        embedding_size: M.
        n_samples: Monte-Carlo samples per image. The paper has 5 to 20; more than 5 gained nothing here.
        normalizer: "exact" (densities integrate to one) or "paper" (the paper's heuristic).
        estimator: "monte_carlo" as in the paper, or "analytic": a closed form without noise, N times cheaper.
        antithetic: draw the samples in pairs with opposite tangents: less noise at the same cost.
        temperature: initial t > 0.
        learnable_temperature: whether t is trained.
        temperature_position: "inside", log (1/N)Σ ρ(z_i)^{1/t} (the paper's Algorithm 1), or "outside", −d/t (its
            Eq. 6). The same for t = 1.
        initial_concentration: κ_cm at the start; None chooses it so that the softmax starts at a cosine scale of 16.
        concentration: "per_class", (C, M) parameters; "shared", one row for all classes; or "shared_plus_deviation":
            log κ_c = log κ_shared + δ_c with (C, M) deviations δ that start at zero and that a penalty draws back to
            it, so that classes with few images keep close to the shape that all classes share.
        embedding_scale: factor on the embeddings; "auto" sets it once, at warm start or on the first training batch,
            so that the mean ‖z‖ starts at 4·M, where a vMF in M dimensions is neither noise nor a point. It is a
            buffer in the state_dict. A number fixes it; 1.0 is the paper's reading.
        initial_norm_per_dim: what "auto" brings the mean ‖z‖/M to. Images start as 4·M: small values make them vague,
            large ones make them points.
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

    Needs an optimizer: proxies, concentrations and temperature are parameters (see `param_groups`).
    Default distance: ExpectedLikelihoodNivMFDistance. Default reducer: MeanReducer. Reducer input: loss per element.
    """

    distance: ExpectedLikelihoodNivMFDistance

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        n_samples: int = 5,
        normalizer: str = "exact",
        estimator: str = "monte_carlo",
        antithetic: bool = True,
        temperature: float = 1.0,
        learnable_temperature: bool = True,
        temperature_position: str = "inside",
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
            distance=ExpectedLikelihoodNivMFDistance(n_samples, normalizer, estimator, antithetic),
            temperature=temperature,
            learnable_temperature=learnable_temperature,
            temperature_position=temperature_position,
            initial_concentration=initial_concentration,
            concentration=concentration,
            embedding_scale=embedding_scale,
            initial_norm_per_dim=initial_norm_per_dim,
            chunk_size=chunk_size,
            **kwargs,
        )

    def _starting_norm(self) -> float:
        return starting_norm(self.embedding_size, self.initial_norm_per_dim)


class NivMFProxyLoss(NivMFSoftmaxLoss):
    r"""Softmax over nivMF class proxies under the density at the image's direction (the paper's d_nivMF):

        L = −log softmax_c(log ρ_c(z/‖z‖)/t) at the label

    The distribution-to-point member of the paper's ablation: proxies are non-isotropic, images are points and their
    norms do not enter.

    Args:
        num_classes: number of classes C.
        embedding_size: M.
        normalizer: "exact" (densities integrate to one) or "paper" (the paper's heuristic).
        temperature: initial t > 0.
        learnable_temperature: whether t is trained.
        initial_concentration: κ_cm at the start; None: 16·t.
        concentration: "per_class", (C, M) parameters; "shared", one row for all classes; or "shared_plus_deviation":
            log κ_c = log κ_shared + δ_c with (C, M) deviations δ that start at zero and that a penalty draws back to
            it, so that classes with few images keep close to the shape that all classes share.
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

    Needs an optimizer: proxies, concentrations and temperature are parameters (see `param_groups`).
    Default distance: NivMFDistance. Default reducer: MeanReducer. Reducer input: loss per element.
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        normalizer: str = "exact",
        temperature: float = 1.0,
        learnable_temperature: bool = True,
        initial_concentration: float | None = None,
        concentration: str = "per_class",
        chunk_size: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(
            num_classes,
            embedding_size,
            distance=NivMFDistance(normalizer),
            temperature=temperature,
            learnable_temperature=learnable_temperature,
            temperature_position="outside",  # the same as inside: there is no mean to be inside of
            initial_concentration=initial_concentration,
            concentration=concentration,
            embedding_scale=1.0,
            chunk_size=chunk_size,
            **kwargs,
        )

    def _starting_norm(self) -> None:
        return None
