"""From a raw item to a tensor. Whatever is random draws from torch's global generator, so that runs can be resumed."""

import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision import transforms as T

from ..checks import check_count
from .splits import Transform

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_DEVIATION = (0.229, 0.224, 0.225)


class RandomShift:
    """Move an image (channels, height, width) by up to `pixels` each way; what comes in is 0, the background."""

    def __init__(self, pixels: int) -> None:
        self.pixels = check_count("shift", pixels, at_least=0)

    def __call__(self, image: Tensor) -> Tensor:
        if self.pixels == 0:
            return image
        down, right = torch.randint(-self.pixels, self.pixels + 1, (2,)).tolist()
        return F.pad(image, (right, -right, down, -down))  # a negative padding crops


class UnitRange:
    """Grey image of bytes (1, height, width) -> float32 in [0, 1]; floats stay as they are."""

    def __call__(self, image: Tensor) -> Tensor:
        return image.float() / 255 if image.dtype == torch.uint8 else image.float()


class RandomView:
    """One row of the views (views, …) of an item, by chance."""

    def __call__(self, views: Tensor) -> Tensor:
        return views[int(torch.randint(len(views), ()))]


class FirstView:
    """The original: row 0 of the views (views, …)."""

    def __call__(self, views: Tensor) -> Tensor:
        return views[0]


def grey_transforms(shift: int) -> tuple[Transform, Transform]:
    """(training, evaluation) transforms of small grey byte images."""
    return T.Compose([UnitRange(), RandomShift(shift)]), UnitRange()


def photo_transforms(crop_size: int, resize: int) -> tuple[Transform, Transform]:
    """(training, evaluation) transforms of the paper: random resized crop and flip; resize and centre crop."""
    check_count("crop_size", crop_size, at_least=1)
    check_count("resize", resize, at_least=crop_size)
    to_tensor = [T.ToTensor(), T.Normalize(IMAGENET_MEAN, IMAGENET_DEVIATION)]
    train = T.Compose([T.RandomResizedCrop(crop_size), T.RandomHorizontalFlip(), *to_tensor])
    return train, T.Compose([T.Resize(resize), T.CenterCrop(crop_size), *to_tensor])
