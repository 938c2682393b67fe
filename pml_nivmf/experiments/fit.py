"""Whether the parts of a run fit each other, found out before anything is trained."""

from typing import Any

import torch
from torch import nn

from ..data import DataSplits
from ..models import ConvNet, Identity, TimmTrunk, TorchvisionTrunk
from .errors import ConfigError

# What objects of a kind must be, also those of a plugin.
_TYPES: dict[str, type] = {"dataset": DataSplits, "trunk": nn.Module, "loss": nn.Module}


def check_type(kind: str, built: Any, path: str) -> Any:
    """The object itself, if it is what its kind has to be."""
    if kind in _TYPES and not isinstance(built, _TYPES[kind]):
        wanted, found = _TYPES[kind].__name__, type(built).__name__
        raise ConfigError(f"{path}: a {kind} must be a {wanted}, got a {found}", key=path)
    return built


def check_trunk(trunk: nn.Module, name: str, shape: tuple[int, ...]) -> None:
    """Refuse a trunk that cannot make (batch, num_features) of such data."""
    if isinstance(trunk, Identity) and len(shape) != 1:
        raise _misfit(f"{name} is for features, but the data are images {shape}")
    if isinstance(trunk, ConvNet | TimmTrunk | TorchvisionTrunk) and len(shape) == 1:  # a plugin's may take them
        raise _misfit(f"{name} is for images, but the data are features of width {shape[0]}: use model=features")
    width = getattr(trunk, "num_features", None)
    if not isinstance(width, int):
        raise _misfit(f"{name} must tell the width of its features: an int attribute num_features, got {width!r}")
    features = _try(trunk, name, shape)
    if features != (1, width):
        raise _misfit(f"{name} gives features of shape {features} for one item of shape {shape}, expected {(1, width)}")


def _try(trunk: nn.Module, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that one empty item gets; leaves no trace in statistics and generators."""
    was_training = trunk.training
    trunk.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            return tuple(trunk(torch.zeros(1, *shape)).shape)
    except (RuntimeError, ValueError, TypeError, AttributeError, AssertionError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise _misfit(f"{name} cannot take an item of shape {shape}: {reason}") from error
    finally:
        trunk.train(was_training)


def _misfit(message: str) -> ConfigError:
    return ConfigError(f"model.trunk: {message}", key="model.trunk")
