"""Batch norm with fixed statistics."""

from functools import partial
from typing import TypeVar

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

Module = TypeVar("Module", bound=nn.Module)


def freeze_batch_norm(module: Module, freeze_affine: bool = False) -> Module:
    """Put every batch norm layer of `module` in eval mode and keep it there when .train() is called.

    y = γ·(x − μ)/σ + β with the current running mean μ and standard deviation σ. In metric learning a batch contains
    few classes, so its statistics differ from those of the test set; the paper trains with frozen ones.

    Call it after loading weights and after converting to SyncBatchNorm, which creates new layers.

    freeze_affine: also exclude γ and β from training.

    Returns the same module.
    """
    for name, layer in module.named_modules():
        if not isinstance(layer, _BatchNorm):
            continue
        if layer.running_mean is None:
            raise ValueError(f"{name or layer} has no running statistics: build it with track_running_stats=True")
        # nn.Module.train calls this attribute of its children; a partial can be copied and pickled.
        layer.train = partial(_stay_in_eval, layer)  # type: ignore[method-assign]
        layer.eval()
        if freeze_affine:
            layer.requires_grad_(False)
    return module


def _stay_in_eval(layer: _BatchNorm, mode: bool = True) -> _BatchNorm:
    return type(layer).train(layer, False)
