"""Automatic mixed precision: trunk and head multiply in 16 bits; weights, embeddings and losses stay in 32."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .errors import ConfigError

CHOICES = ("off", "bfloat16", "float16")


def use(choice: str, trunk: nn.Module, embedder: nn.Module) -> None:
    """Let both run under autocast, in training and evaluation, from now on; nothing for "off".

    The loss gets embeddings of 32 bits: PML's losses would cast their proxies to 16 bits, for good.
    """
    if choice == "off":
        return
    dtype = getattr(torch, choice)
    # A partial, unlike a closure, is copied with its module.
    trunk.forward = partial(_autocast, trunk, dtype, False)
    embedder.forward = partial(_autocast, embedder, dtype, True)


def scaler_for(choice: str, device: torch.device) -> torch.amp.GradScaler | None:
    """Gradients of float16 underflow unless the loss is scaled up; bfloat16 has the range of float32."""
    if choice != "off" and device.type not in ("cpu", "cuda"):
        raise ConfigError(f"general.amp: {choice} is known on cpu and cuda, got {device.type}: use off", "general.amp")
    return torch.amp.GradScaler(device.type) if choice == "float16" else None


def _autocast(module: nn.Module, dtype: torch.dtype, to_float32: bool, inputs: Tensor, **options: Any) -> Tensor:
    with torch.autocast(inputs.device.type, dtype):
        outputs: Tensor = type(module).forward(module, inputs, **options)
    return outputs.float() if to_float32 else outputs
