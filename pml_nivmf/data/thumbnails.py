"""Small pictures of items for people to look at."""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision import transforms as T

from .splits import LabelledItems, Transform

_LONGEST = 64  # pixels: enough to recognise a photograph
_ROUNDING = 1e-3  # what normalising and undoing it may leave outside [0, 1]


def thumbnails(items: LabelledItems, indices: Iterable[int], longest: int = _LONGEST) -> np.ndarray:
    """The items as bytes (n, 1 or 3, height, width), shrunk so that no side is longer than `longest`.

    A `Normalize` among the transforms is undone. Items that are no pictures even so raise a ValueError.
    """
    found = []
    for image in (items[index][0] for index in indices):
        if image.ndim != 3 or image.shape[0] not in (1, 3):
            raise ValueError(f"a picture is (1 or 3, height, width), got {tuple(image.shape)}")
        pixels = _denormalised(image, items.transform)
        low, high = float(pixels.min()), float(pixels.max())
        if low < -_ROUNDING or high > 1 + _ROUNDING:
            raise ValueError(f"a picture's pixels lie in [0, 1], got [{low:.3g}, {high:.3g}]")
        found.append(_bytes(pixels, longest))
    return np.stack(found)


def thumbnail(image: Tensor, transform: Transform, longest: int = _LONGEST) -> np.ndarray:
    """One image (1 or 3, height, width) that came out of `transform` and may have been changed since, as bytes;
    what noise brought out of [0, 1] is cut off."""
    return _bytes(_denormalised(image, transform), longest)


def _bytes(pixels: Tensor, longest: int) -> np.ndarray:
    return (_shrunk(pixels, longest).clamp(0, 1) * 255).round().byte().numpy()


def _denormalised(image: Tensor, transform: Transform) -> Tensor:
    """image·deviation + mean for every Normalize, the last first."""
    image = image.float()
    for step in reversed(getattr(transform, "transforms", [transform])):
        if isinstance(step, T.Normalize):
            mean, deviation = (torch.as_tensor(values)[:, None, None] for values in (step.mean, step.std))
            image = image * deviation + mean
    return image


def _shrunk(image: Tensor, longest: int) -> Tensor:
    height, width = image.shape[1:]
    if max(height, width) <= longest:
        return image
    size = [max(1, round(side * longest / max(height, width))) for side in (height, width)]
    return F.interpolate(image[None], size=size, mode="bilinear", antialias=True)[0]
