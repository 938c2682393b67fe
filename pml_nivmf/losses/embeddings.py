"""What a proxy loss does with embeddings: check them, scale them, and start proxies at the means of their classes."""

import warnings
from collections.abc import Iterable
from typing import Any

import torch
from pytorch_metric_learning.losses import BaseMetricLossFunction
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import update_bn

from ..checks import check_positive
from ..distances import NormCarryingDistance
from ..functional.finite import check_squarable, first_false, is_readable
from ..functional.pairing import at_least_float32, unit_vectors
from .collectives import mean_over_ranks

# A fresh Linear head gives norms of about √(M/3), but a vMF with κ ≪ M is almost uniform. Start with κ = 4·M:
# a mean cosine of 0.88.
CONCENTRATION_PER_DIMENSION = 4.0


def check_labels(labels: Tensor, num_classes: int) -> None:
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"labels must be integers, got {labels.dtype}")
    message = f"is out of range for num_classes={num_classes}: labels must be 0 … {num_classes - 1}"
    if (row := first_false((labels >= 0) & (labels < num_classes), f"a label {message}")) is not None:
        raise ValueError(f"label {int(labels[row])} {message}")


class EmbeddingScaleMixin(BaseMetricLossFunction):
    """Embeddings in working precision, times a factor that is fixed or set by the first training batch."""

    embedding_scale: Tensor
    embedding_scale_is_set: Tensor

    def _starting_norm(self) -> float | None:
        """The mean norm that embeddings should start with, or None if their norms do not matter."""
        if self.distance.normalize_embeddings or not getattr(self.distance, "uses_query_norm", True):
            return None
        if isinstance(self.distance, NormCarryingDistance):
            return float(self.initial_norm_per_dim * self.embedding_size)
        return float(self._starting_concentration())  # such as L2: by default that of the proxies

    def accept(self, embeddings: Tensor) -> Tensor:
        """The embeddings in the dtype to compute in. The loss follows them to their device, as PML's losses do."""
        shape, dtype = tuple(embeddings.shape), embeddings.dtype
        if len(shape) != 2 or shape[0] == 0 or shape[1] != self.embedding_size or not dtype.is_floating_point:
            expected = f"a floating point tensor of shape (batch, {self.embedding_size}) with at least one row"
            raise ValueError(f"embeddings must be {expected}, got shape {shape} of {dtype}")
        if self.proxies.device != embeddings.device:
            self.to(embeddings.device)
        check_squarable("embeddings", embeddings, self.embedding_scale)
        return embeddings.to(torch.promote_types(at_least_float32(embeddings).dtype, self.proxies.dtype))

    def _set_embedding_scale(self, embedding_scale: float | str) -> None:
        automatic = embedding_scale == "auto"
        number = 1.0 if automatic else check_positive('embedding_scale (a number or "auto")', embedding_scale)  # type: ignore[arg-type]
        self.automatic_scale = automatic and self._starting_norm() is not None
        self.register_buffer("embedding_scale", torch.tensor(number))
        self.register_buffer("embedding_scale_is_set", torch.tensor(not self.automatic_scale))
        self._expect_first_batch()
        self.register_load_state_dict_post_hook(EmbeddingScaleMixin._expect_first_batch)

    def _expect_first_batch(self, _incompatible_keys: Any = None) -> None:
        self._is_first_batch = True

    def _scaled(self, embeddings: Tensor) -> Tensor:
        return embeddings * self.embedding_scale.to(embeddings.dtype)

    @torch.no_grad()
    def _see_norms(self, embeddings: Tensor, recalibrate: bool = False) -> None:
        """On the first batch, warn if embeddings are normalised, and set an automatic scale, without host syncs."""
        target = self._starting_norm()
        if target is None or not (self._is_first_batch or recalibrate):
            return
        norms = torch.linalg.vector_norm(embeddings, dim=1)
        if is_readable(norms) and bool(((norms - 1).abs() < 1e-2).all()):
            warnings.warn("all embeddings have length one, but the loss uses the norm: do not normalise", stacklevel=1)
        if self.automatic_scale:
            mean_norm = mean_over_ranks(norms).to(self.embedding_scale.dtype)
            scale = torch.where(mean_norm > 0, target / mean_norm, 1.0)
            is_set = self.embedding_scale_is_set & (not recalibrate)
            self.embedding_scale.copy_(torch.where(is_set, self.embedding_scale, scale))
            self.embedding_scale_is_set.fill_(True)
        if not torch.compiler.is_compiling():  # a change would compile the graph again
            self._is_first_batch = False


def move_scale_to_head(loss: nn.Module, head: Any) -> None:
    """Move an automatic `embedding_scale` to the `scale` of an `EmbeddingHead`: its norms become concentrations."""
    owner = getattr(loss, "probabilistic", None)
    if owner is not None and owner.automatic_scale:
        head.scale.mul_(owner.embedding_scale.to(head.scale))
        owner.embedding_scale.fill_(1.0)


@torch.no_grad()
def point_at_class_means(proxies: nn.Parameter, embeddings: Tensor, labels: Tensor, first: int = 0) -> None:
    """Turn each proxy to the mean of its class's embeddings; `first` is the class of the first proxy.

    Proxies keep their lengths: a length of about √M makes an optimizer's step a rotation by about the learning rate.
    """
    own = (labels >= first) & (labels < first + len(proxies))
    sums = torch.zeros_like(proxies, dtype=embeddings.dtype)
    sums.index_add_(0, labels[own].long() - first, embeddings[own])
    has_mean = torch.linalg.vector_norm(sums, dim=1) > 0
    lengths = torch.linalg.vector_norm(proxies[has_mean], dim=1, keepdim=True)
    proxies[has_mean] = unit_vectors(sums[has_mean]).to(proxies.dtype) * lengths
    if missing := ((~has_mean).nonzero()[:, 0] + first).tolist():
        text = f"{len(missing)} classes have no sample or no mean and keep their proxies, first {missing[:10]}"
        warnings.warn(f"warm start: {text}", stacklevel=3)


@torch.no_grad()
def warm_start_from_loader(loss: Any, model: nn.Module, loader: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Embed all (images, labels) batches of `loader` with `model` in eval mode and start the proxies at class means.

    If no batch norm has seen data (none is pretrained), they first take their statistics from the loader.

    Args:
        loss: a proxy loss of this package, whose embedding scale is set too, or one of PML with `proxies` (classes, M).
        model: images -> raw embeddings, trunk and head together; its training mode is restored.
        loader: batches of the training set, best without augmentation. It is read twice if batch norms are fresh.
    """
    if not hasattr(loss, "proxies"):
        raise ValueError(f"{type(loss).__name__} has no class proxies to start at class means")
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    modes = [(module, module.training) for module in model.modules()]
    norms = [(module.running_mean, training) for module, training in modes if isinstance(module, _BatchNorm)]
    try:
        if all(training and mean is not None and not mean.any() for mean, training in norms):
            update_bn(loader, model, device)
        model.eval()
        batches = [(model(images.to(device)).float(), labels.to(device)) for images, labels in loader]
    finally:
        for module, training in modes:
            module.training = training
    if not batches:
        raise ValueError("the loader gave no batch to warm start from")
    embeddings, labels = (torch.cat(tensors) for tensors in zip(*batches, strict=True))
    if hasattr(loss, "warm_start"):
        loss.warm_start(embeddings, labels)
    else:
        point_at_class_means(loss.proxies, embeddings.to(loss.proxies.device), labels.to(loss.proxies.device))
