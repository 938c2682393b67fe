"""Batch norm that keeps the statistics it was pretrained with."""

from functools import partial
from typing import TypeVar

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

Module = TypeVar("Module", bound=nn.Module)


def freeze_batch_norm(module: Module, freeze_affine: bool = False) -> Module:
    """Put every batch norm layer of `module` in eval mode and keep it there whenever .train() is called.

    y = γ·(x − μ)/σ + β with the running mean μ and deviation σ as they are now. In metric learning batches hold few
    classes, so their statistics differ from the test set's; the paper trains with frozen ones.

    Call it after loading weights and after converting to SyncBatchNorm, which makes new layers.

    freeze_affine: also take γ and β out of training.

    Returns the same module.
    """
    for name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm):
            _freeze(name or type(layer).__name__, layer, freeze_affine)
    return module


def _freeze(name: str, layer: _BatchNorm, freeze_affine: bool) -> None:
    if layer.running_mean is None:
        raise ValueError(f"{name} has no running statistics to freeze: build it with track_running_stats=True")
    # nn.Module.train reaches its children through this attribute; a partial can be copied and pickled.
    layer.train = partial(_stay_in_eval, layer)  # type: ignore[method-assign]
    layer.eval()
    if freeze_affine:
        for parameter in layer.parameters(recurse=False):
            parameter.requires_grad_(False)


def _stay_in_eval(layer: _BatchNorm, mode: bool = True) -> _BatchNorm:
    return type(layer).train(layer, False)
