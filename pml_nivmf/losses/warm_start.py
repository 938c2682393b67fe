"""Warm start of a proxy loss from a model and a DataLoader."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from .base import ProxyLoss
from .joint import JointProxyLoss


@torch.no_grad()
def warm_start_from_loader(
    loss: ProxyLoss | JointProxyLoss,
    model: nn.Module,
    loader: Iterable[tuple[Tensor, Tensor]],
    device: torch.device | str | None = None,
) -> None:
    """Embed all (images, labels) batches of `loader` with `model` in eval mode and call `loss.warm_start`.

    Args:
        loss: the loss whose proxies become class means and whose embedding scale is set.
        model: images -> raw embeddings, trunk and head together; its training mode is restored.
        loader: a DataLoader over the training set, without augmentation for the best means.
        device: where the model is; by default the device of its first parameter.
    """
    if device is None:
        device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        batches = [(model(images.to(device)).float(), labels.to(device)) for images, labels in loader]
    finally:
        for module, mode in modes:
            module.training = mode
    if not batches:
        raise ValueError("the loader gave no batch: nothing to warm start from")
    loss.warm_start(torch.cat([e for e, _ in batches]), torch.cat([labels for _, labels in batches]))
