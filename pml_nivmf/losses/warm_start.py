"""The start of a training: class means into the proxies, starting norms into the head."""

from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .base import ProxyLoss
from .class_means import point_at_class_means
from .joint import JointProxyLoss

Batches = Iterable[tuple[Tensor, Tensor]]


class ScalableHead(Protocol):
    """A head that multiplies its output by a buffer `scale`, as `models.EmbeddingHead` does."""

    scale: Tensor


def can_warm_start(loss: nn.Module) -> bool:
    """Whether a loss has class proxies to start at class means: this package's and, e.g., PML's ProxyAnchorLoss."""
    if isinstance(loss, ProxyLoss | JointProxyLoss):
        return True
    proxies = getattr(loss, "proxies", None)
    return isinstance(proxies, nn.Parameter) and proxies.ndim == 2


@torch.no_grad()
def warm_start_from_loader(
    loss: nn.Module,
    model: nn.Module,
    loader: Batches,
    device: torch.device | str | None = None,
) -> None:
    """Embed all (images, labels) batches of `loader` with `model` in eval mode and start the proxies at class means.

    Batch norms that have never seen data take their statistics from the loader first: with the initial ones a fresh
    conv net's embeddings are another network's, 20 times shorter than those it is about to be trained with.

    Args:
        loss: the loss whose proxies become class means and whose embedding scale is set; one of this package's, or
            one of PML's with `proxies` (classes, M), so that both start alike in a comparison.
        model: images -> raw embeddings, trunk and head together; its training mode is restored.
        loader: a DataLoader over the training set, without augmentation for the best means. It is read twice if the
            model has fresh batch norms.
        device: where the model is; by default the device of its first parameter.
    """
    if not can_warm_start(loss):
        raise ValueError(f"{type(loss).__name__} has no class proxies to start at class means: leave it out")
    if device is None:
        device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    modes = [(module, module.training) for module in model.modules()]
    fresh = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.training and _is_fresh(m)]
    model.eval()
    try:
        _estimate_statistics(fresh, model, loader, device)
        batches = [(model(images.to(device)).float(), labels.to(device)) for images, labels in loader]
    finally:
        for module, mode in modes:
            module.training = mode
    if not batches:
        raise ValueError("the loader gave no batch: nothing to warm start from")
    embeddings, labels = torch.cat([e for e, _ in batches]), torch.cat([labels for _, labels in batches])
    if isinstance(loss, ProxyLoss | JointProxyLoss):
        loss.warm_start(embeddings, labels)
    else:
        point_at_class_means(loss.proxies, embeddings.to(loss.proxies.device), labels.to(loss.proxies.device))  # type: ignore[arg-type]


def move_scale_to_head(loss: nn.Module, head: ScalableHead) -> None:
    """Let the head give embeddings of the norms that the loss wants: its `embedding_scale` goes into `head.scale`.

    The loss sees the same numbers as before. The model's raw norms become the concentrations themselves, which is what
    norm-carrying distances and certainties want at inference. Only a scale that the loss has set by itself moves; one
    that the user fixed is part of the loss.
    """
    owner = loss.probabilistic if isinstance(loss, JointProxyLoss) else loss
    if isinstance(owner, ProxyLoss) and owner.automatic_scale and bool(owner.embedding_scale_is_set):
        head.scale.mul_(owner.embedding_scale.to(head.scale))
        owner._set_scale(torch.ones_like(owner.embedding_scale))


def _is_fresh(norm: _BatchNorm) -> bool:
    """Whether the running statistics are still those of the constructor."""
    if norm.running_mean is None or norm.running_var is None:
        return False
    return not bool(norm.running_mean.any()) and bool((norm.running_var == 1).all())


def _estimate_statistics(
    norms: list[_BatchNorm], model: nn.Module, loader: Batches, device: torch.device | str
) -> None:
    """Running statistics become means over all batches, as in torch.optim.swa_utils.update_bn, for these layers."""
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.train()
        norm.momentum = None  # a plain average
    try:
        for images, _ in loader:
            model(images.to(device))
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.eval()
            norm.momentum = momentum
