"""Images: reading them from disk, transforms for training and evaluation, thumbnails.

Random transforms draw from torch's global generator, so that a resumed run repeats them.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F
from torchvision import transforms as T

from ..checks import check_count
from .splits import DataSplits, Source, Transform, hold_out_classes, make_splits

_NORMALIZE = T.Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))  # ImageNet's
_LONGEST = 64  # pixels of a thumbnail: enough to recognise a photograph


def to_rgb(image: Image.Image) -> Image.Image:
    """Grey, palette and transparent images, too: transparent parts become white, 16 bits are reduced to 8."""
    if image.mode.startswith("I"):  # Pillow would clip at 255
        image = Image.fromarray((np.asarray(image) // 257).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


class ImagePaths:
    """Images by path, opened and converted when they are indexed."""

    def __init__(self, paths: Sequence[str | Path], convert: Callable[[Image.Image], Any] = to_rgb) -> None:
        self.paths = [str(path) for path in paths]
        self.convert = convert

    def __getitem__(self, index: int) -> Any:
        path = self.paths[index]
        try:
            with Image.open(path) as image:
                return self.convert(image)
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:  # all raised by Pillow
            raise OSError(f"cannot read the image {path} ({error}): replace or remove the file") from error

    def __len__(self) -> int:
        return len(self.paths)


def unit_range(image: Tensor) -> Tensor:
    """Bytes to float32 in [0, 1]; floats keep their values."""
    return image.float() / 255 if image.dtype == torch.uint8 else image.float()


def grey_splits(train: Source, test: Source, shift: int, validation_share: float, seed: int) -> DataSplits:
    """Splits of small grey images (1, height, width); training images are shifted by up to `shift` pixels.

    New pixels are 0, the background.
    """
    shape = tuple(train.items[0].shape)
    random_shift = T.RandomCrop(shape[1:], padding=check_count("shift", shift, at_least=0))
    return make_splits(
        train,
        test,
        held_out=hold_out_classes(train.labels, validation_share, seed),
        train_transform=T.Compose([unit_range, random_shift]),
        plain_transform=unit_range,
        input_shape=shape,
    )


def photo_splits(
    train: Source, test: Source, crop_size: int, resize: int, validation_share: float, seed: int
) -> DataSplits:
    """Splits of photographs with the paper's transforms: random resized crop and flip; resize and centre crop."""
    check_count("crop_size", crop_size)
    check_count("resize", resize, at_least=crop_size)
    to_tensor = [T.ToTensor(), _NORMALIZE]
    return make_splits(
        train,
        test,
        held_out=hold_out_classes(train.labels, validation_share, seed),
        train_transform=T.Compose([T.RandomResizedCrop(crop_size), T.RandomHorizontalFlip(), *to_tensor]),
        plain_transform=T.Compose([T.Resize(resize), T.CenterCrop(crop_size), *to_tensor]),
        input_shape=(3, crop_size, crop_size),
    )


def thumbnail(image: Tensor, transform: Transform) -> np.ndarray:
    """An image (1 or 3, height, width) as bytes, shrunk so that no side is longer than 64 pixels.

    The normalisation of `transform` is undone, and pixels are clipped to [0, 1]. Other items raise a ValueError.
    """
    if image.ndim != 3 or image.shape[0] not in (1, 3):
        raise ValueError(f"an image must have the shape (1 or 3, height, width), got {tuple(image.shape)}")
    pixels = image.float()
    for step in reversed(getattr(transform, "transforms", [])):
        if isinstance(step, T.Normalize):
            mean, std = (torch.as_tensor(values)[:, None, None] for values in (step.mean, step.std))
            pixels = pixels * std + mean
    height, width = pixels.shape[1:]
    if max(height, width) > _LONGEST:
        size = [max(1, round(side * _LONGEST / max(height, width))) for side in (height, width)]
        pixels = F.interpolate(pixels[None], size=size, mode="bilinear", antialias=True)[0]
    return (pixels.clamp(0, 1) * 255).round().byte().numpy()
