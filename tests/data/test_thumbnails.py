"""Pictures for people: bytes of what was loaded, whatever the transforms did to it."""

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as T

from pml_nivmf.data import LabelledItems, thumbnails
from pml_nivmf.data.splits import Source
from pml_nivmf.data.transforms import photo_transforms


def items(raw, transform):
    labels = torch.zeros(len(raw), dtype=torch.long)
    return LabelledItems(Source(raw, labels), torch.ones_like(labels, dtype=torch.bool), transform)


def test_grey_images_come_back_byte_for_byte():
    raw = torch.randint(0, 256, (5, 1, 28, 28), dtype=torch.uint8)
    assert np.array_equal(thumbnails(items(raw, lambda image: image.float() / 255), [4, 0]), raw[[4, 0]].numpy())


def test_photographs_are_denormalised_and_shrunk_in_proportion():
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 80, 3), dtype=np.uint8))
    to_tensor = T.Compose([T.ToTensor(), T.Normalize((0.5, 0.4, 0.3), (0.2, 0.1, 0.3))])
    whole = thumbnails(items([photo], to_tensor), [0], longest=80)
    assert np.abs(whole[0].transpose(1, 2, 0).astype(int) - np.asarray(photo)).max() <= 1
    assert thumbnails(items([photo], to_tensor), [0], longest=20).shape == (1, 3, 10, 20)
    plain = Image.new("RGB", (50, 50), (200, 20, 40))
    shown = thumbnails(items([plain], photo_transforms(32, 40)[1]), [0], longest=16)
    assert shown.shape == (1, 3, 16, 16)
    assert np.abs(shown.astype(int) - np.array([200, 20, 40])[None, :, None, None]).max() <= 1


@pytest.mark.parametrize(
    ("raw", "message"),
    [(torch.zeros(1, 4), r"got \(4,\)"), (torch.zeros(1, 2, 3, 3), "1 or 3"), (torch.full((1, 1, 3, 3), 2.0), r"2\]")],
)
def test_what_is_no_picture_is_refused(raw, message):
    with pytest.raises(ValueError, match=message):
        thumbnails(items(raw, lambda image: image), [0])
