"""Proxy losses with non-isotropic vMF proxies: EL-nivMF, and the distribution-to-point d_nivMF."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import check_option, check_positive
from ..distances import ExpectedLikelihoodNivMFDistance, NivMFDistance, NivMFReferenceDistance
from ..functional.nivmf import nivmf_terms
from ..functional.pairing import CROSS
from .base import ProxyLoss, starting_concentration
from .embedding_scale import starting_norm


class NivMFSoftmaxLoss(ProxyLoss):
    """What the nivMF losses share: one concentration per dimension, and the temperature inside or outside."""

    distance: NivMFReferenceDistance

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        distance: NivMFReferenceDistance,
        initial_concentration: float | None,
        concentration: str,
        temperature_position: str,
        **kwargs: Any,
    ):
        super().__init__(num_classes, embedding_size, distance=distance, **kwargs)
        check_option("concentration", concentration, ("per_class", "shared"))
        self.temperature_position = check_option("temperature_position", temperature_position, ("inside", "outside"))
        if initial_concentration is None:
            slope = distance.slope_per_unit(torch.tensor(starting_norm(embedding_size)), embedding_size)
            initial_concentration = starting_concentration(slope, self.initial_temperature)
        start = math.log(check_positive("initial_concentration", initial_concentration))
        rows = num_classes if concentration == "per_class" else 1
        self.log_concentration = nn.Parameter(torch.full((rows, embedding_size), start))

    @property
    def concentration(self) -> Tensor:
        """κ_m of every class, (C, M)."""
        return torch.exp(self.log_concentration).expand_as(self.proxies)

    def _class_parameters(self) -> tuple[Tensor, ...]:
        return self.proxies, self.log_concentration.expand_as(self.proxies)

    def _query(self, embeddings: Tensor) -> Tensor:
        return self.distance.draw(embeddings)

    def _logits(self, query: Tensor, *class_parameters: Tensor) -> Tensor:
        proxies, log_concentration = class_parameters
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
        n_samples: Monte-Carlo samples per image.
        normalizer: "paper" (the paper's heuristic) or "exact" (densities integrate to one).
        estimator: "monte_carlo" as in the paper, or "analytic": a closed form without noise, N times cheaper.
        antithetic: draw the samples in pairs with opposite tangents: less noise at the same cost.
        temperature: initial t > 0.
        learnable_temperature: whether t is trained.
        temperature_position: "inside", log (1/N)Σ ρ(z_i)^{1/t} (the paper's Algorithm 1), or "outside", −d/t (its
            Eq. 6). The same for t = 1.
        initial_concentration: κ_cm at the start; None chooses it so that the softmax starts at a cosine scale of 16.
        concentration: "per_class", (C, M) parameters, or "shared", one row for all classes.
        embedding_scale: factor on the embeddings; "auto" sets it once, at warm start or on the first training batch,
            so that the mean ‖z‖ starts at 4·M, where a vMF in M dimensions is neither noise nor a point. It is a
            buffer in the state_dict. A number fixes it; 1.0 is the paper's reading.
        chunk_size: classes computed at a time; None computes all at once.
        **kwargs: PML's `reducer`, `weight_regularizer`, `embedding_regularizer`, `weight_init_func`, …

    Needs an optimizer: proxies, concentrations and temperature are parameters (see `param_groups`).
    Default distance: ExpectedLikelihoodNivMFDistance. Default reducer: MeanReducer. Reducer input: loss per element.
    """

    distance: ExpectedLikelihoodNivMFDistance

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        n_samples: int = 10,
        normalizer: str = "paper",
        estimator: str = "monte_carlo",
        antithetic: bool = True,
        temperature: float = 1.0,
        learnable_temperature: bool = True,
        temperature_position: str = "inside",
        initial_concentration: float | None = None,
        concentration: str = "per_class",
        embedding_scale: float | str = "auto",
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
            chunk_size=chunk_size,
            **kwargs,
        )

    def _starting_norm(self) -> float:
        return starting_norm(self.embedding_size)


class NivMFProxyLoss(NivMFSoftmaxLoss):
    r"""Softmax over nivMF class proxies under the density at the image's direction (the paper's d_nivMF):

        L = −log softmax_c(log ρ_c(z/‖z‖)/t) at the label

    The distribution-to-point member of the paper's ablation: proxies are non-isotropic, images are points and their
    norms do not enter.

    Args:
        num_classes: number of classes C.
        embedding_size: M.
        normalizer: "paper" (the paper's heuristic) or "exact" (densities integrate to one).
        temperature: initial t > 0.
        learnable_temperature: whether t is trained.
        initial_concentration: κ_cm at the start; None: 16·t.
        concentration: "per_class", (C, M) parameters, or "shared", one row for all classes.
        chunk_size: classes computed at a time; None computes all at once.
        **kwargs: PML's `reducer`, `weight_regularizer`, `embedding_regularizer`, `weight_init_func`, …

    Needs an optimizer: proxies, concentrations and temperature are parameters (see `param_groups`).
    Default distance: NivMFDistance. Default reducer: MeanReducer. Reducer input: loss per element.
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        normalizer: str = "paper",
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
