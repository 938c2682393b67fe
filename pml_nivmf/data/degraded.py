"""Images made worse by a known amount, to see whether a model notices."""

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset
from torchvision.transforms import functional as TF

from ..checks import check_count, check_option

_WIDEST_BLUR = 1 / 8  # deviation of the strongest blur, in lengths of the shorter side


class LabelledImages(Protocol):
    """A data set of (image (channels, height, width), label), such as DataSplits.test or torchvision's ImageFolder."""

    def __getitem__(self, index: int, /) -> tuple[Tensor, Any]: ...

    def __len__(self) -> int: ...


class DegradedItems(Dataset[tuple[Tensor, int]]):
    """The images of a data set, degraded; the order and the labels are the same.

    items: images as float tensors (channels, height, width), after the evaluation transform.
    kind: how, at strength s:
        "crop": a random window of a share 1 − s of the area, enlarged to the whole;
        "occlude": a random window of a share s of the area is set to 0, which is the background of glyphs and the mean
        colour of normalised photographs;
        "blur": a Gaussian of deviation s/8 of the shorter side;
        "noise": Gaussian noise of deviation s, in the units of the pixels.
    strength: s in [0, 1], one number or one an item, (items,); 0 leaves an image as it is. A crop must leave a pixel.
    seed: fixes the windows and the noise. They depend on seed and index only, so an image looks the same every time,
        whatever was drawn before and in whichever worker process.

    `strengths` is (items,), to be compared with certainty. `labels` are those of `items`, where it has them.
    """

    def __init__(self, items: LabelledImages, kind: str, strength: float | Any, seed: int = 0) -> None:
        self.items = items
        self.kind = check_option("kind", kind, tuple(_KINDS))
        self.seed = check_count("seed", seed, at_least=0)
        self.strengths = _check_strengths(strength, len(items))
        if kind == "crop" and bool((self.strengths == 1).any()):
            raise ValueError("a crop of strength 1 leaves nothing of the image: use less")

    @property
    def labels(self) -> Tensor:
        return self.items.labels  # type: ignore[attr-defined]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, label = self.items[index]
        if image.ndim != 3 or not image.is_floating_point():
            raise ValueError(
                "only images can be degraded, float tensors (channels, height, width); "
                f"item {index} is {image.dtype} of shape {tuple(image.shape)}"
            )
        strength = float(self.strengths[index])
        if strength == 0:
            return image, label
        chance = np.random.default_rng([self.seed, index % len(self)])
        return _KINDS[self.kind](image, strength, chance), label


def _check_strengths(strength: Any, count: int) -> Tensor:
    strengths = torch.as_tensor(strength, dtype=torch.double)
    if strengths.shape not in ((), (count,)):
        raise ValueError(
            f"strength must be one number or one for each of {count} items, got shape {tuple(strengths.shape)}"
        )
    outside = ~((strengths >= 0) & (strengths <= 1))  # NaN too
    if bool(outside.any()):
        raise ValueError(f"strength must lie in [0, 1], got {strengths[outside].flatten()[0].item()}")
    return strengths.expand(count).clone()


def _window(image: Tensor, share: float, chance: np.random.Generator) -> tuple[slice, slice]:
    """Rows and columns of a random window with the image's proportions and a share of its area."""
    places = []
    for length in image.shape[-2:]:
        size = min(length, max(1, round(length * math.sqrt(share))))
        start = int(chance.integers(0, length - size + 1))
        places.append(slice(start, start + size))
    return places[0], places[1]


def _crop(image: Tensor, strength: float, chance: np.random.Generator) -> Tensor:
    rows, columns = _window(image, 1 - strength, chance)
    size = list(image.shape[-2:])
    return F.interpolate(image[None, :, rows, columns], size=size, mode="bilinear", align_corners=False)[0]


def _occlude(image: Tensor, strength: float, chance: np.random.Generator) -> Tensor:
    rows, columns = _window(image, strength, chance)
    hidden = image.clone()
    hidden[:, rows, columns] = 0
    return hidden


def _blur(image: Tensor, strength: float, chance: np.random.Generator) -> Tensor:
    shorter = min(image.shape[-2:])
    deviation = strength * _WIDEST_BLUR * shorter
    reach = min(math.ceil(3 * deviation), shorter - 1)  # the border is mirrored, which needs more pixels than reach
    blurred: Tensor = TF.gaussian_blur(image, [2 * reach + 1, 2 * reach + 1], [deviation, deviation])
    return blurred


def _noise(image: Tensor, strength: float, chance: np.random.Generator) -> Tensor:
    noise = torch.from_numpy(chance.standard_normal(image.shape)).to(image)
    return image + strength * noise


_KINDS: dict[str, Callable[[Tensor, float, np.random.Generator], Tensor]] = {
    "crop": _crop,
    "occlude": _occlude,
    "blur": _blur,
    "noise": _noise,
}
