"""Images degraded by a known amount, to test whether a model becomes less certain."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms import functional as TF

from ..checks import check_count, check_option

CROP = 0.75  # the strength of crops that teach norms and test them: a quarter of the area is left
_STRONGEST_BLUR = 1 / 8  # standard deviation at strength 1, relative to the shorter side


class DegradedItems(Dataset[tuple[Tensor, int]]):
    """The images of a data set, degraded, in the same order and with the same labels.

    items: a data set of (image, label), where images are float tensors (channels, height, width) after the evaluation
        transform.
    kind: what to do at strength s:
        "crop": enlarge a random window with a share 1 − s of the area to the whole image;
        "occlude": set a random window with a share s of the area to 0, which is the background of glyphs and the mean
        colour of normalised photographs;
        "blur": apply a Gaussian filter with a standard deviation of s/8 of the shorter side;
        "noise": add Gaussian noise with a standard deviation of s, in the units of the pixels.
    strength: s in [0, 1], one number or one for each item, (items,); 0 leaves an image unchanged.
    seed: fixes windows and noise. They depend on the seed and the index only, so that every access to an item gives the
        same image.

    `strengths` is (items,). `labels` are those of `items`, or None if it has none.
    """

    def __init__(self, items: Any, kind: str, strength: float | Any, seed: int = 0) -> None:
        self.items = items
        self.labels: Tensor | None = getattr(items, "labels", None)
        self.kind = check_option("kind", kind, tuple(_KINDS))
        self.seed = check_count("seed", seed, at_least=0)
        self.strengths = torch.as_tensor(strength, dtype=torch.double).expand(len(items))
        if not bool(((self.strengths >= 0) & (self.strengths <= 1)).all()):
            raise ValueError(f"strength must lie in [0, 1], got {strength}")

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, label = self.items[index]
        strength = float(self.strengths[index])
        if strength == 0:
            return image, label
        generator = np.random.default_rng([self.seed, index % len(self)])
        return _KINDS[self.kind](image, strength, generator), label


def _window(image: Tensor, share: float, generator: np.random.Generator) -> tuple[int, int, int, int]:
    """(top, left, height, width) of a random window with the image's aspect ratio and a share of its area."""
    lengths = list(image.shape[-2:])
    sizes = [min(length, max(1, round(length * math.sqrt(share)))) for length in lengths]
    top, left = (int(generator.integers(0, length - size + 1)) for length, size in zip(lengths, sizes, strict=True))
    return top, left, sizes[0], sizes[1]


def _crop(image: Tensor, strength: float, generator: np.random.Generator) -> Any:
    window = _window(image, 1 - strength, generator)
    return TF.resized_crop(image, *window, size=list(image.shape[-2:]), antialias=False)


def _occlude(image: Tensor, strength: float, generator: np.random.Generator) -> Any:
    return TF.erase(image, *_window(image, strength, generator), v=torch.zeros(()))


def _blur(image: Tensor, strength: float, generator: np.random.Generator) -> Any:
    shorter = min(image.shape[-2:])
    std = strength * _STRONGEST_BLUR * shorter
    radius = min(math.ceil(3 * std), shorter - 1)  # reflection at the border needs more pixels than the radius
    return TF.gaussian_blur(image, [2 * radius + 1, 2 * radius + 1], [std, std])


def _noise(image: Tensor, strength: float, generator: np.random.Generator) -> Tensor:
    return image + strength * torch.from_numpy(generator.standard_normal(image.shape)).to(image)


_KINDS: dict[str, Callable[..., Tensor]] = {"crop": _crop, "occlude": _occlude, "blur": _blur, "noise": _noise}
