"""Reading images, the transforms of training and evaluation, thumbnails."""

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as T

from pml_nivmf.data.images import ImagePaths, grey_splits, photo_splits, thumbnail
from pml_nivmf.data.splits import Source

from .fakes import write_image


def photos(crop_size=224, resize=256):
    gradient = Image.fromarray(np.arange(40 * 60, dtype=np.uint8).reshape(40, 60)).convert("RGB")
    source = Source([gradient] * 8, torch.arange(8))
    return photo_splits(source, source, crop_size, resize, validation_share=0.25, seed=0)


def test_images_of_every_mode_are_read_as_rgb(tmp_path):
    """Transparent parts become white, 16 bits are scaled."""
    for mode in ("L", "RGB", "RGBA", "P"):
        image = ImagePaths([write_image(tmp_path / "a.png", 77, mode)])[0]
        assert (image.mode, image.size) == ("RGB", (40, 30))
    Image.new("RGBA", (1, 1), (0, 0, 0, 0)).save(tmp_path / "transparent.png")
    Image.fromarray(np.array([[0, 32896, 65535]], dtype=np.uint16)).save(tmp_path / "grey16.png")
    transparent, grey = ImagePaths([tmp_path / "transparent.png", tmp_path / "grey16.png"])
    assert transparent.getpixel((0, 0)) == (255, 255, 255)
    assert np.asarray(grey)[0, :, 0].tolist() == [0, 128, 255]


@pytest.mark.parametrize("content", [b"", b"no image", b"\x89PNG\r\n\x1a\n\0\0"])
def test_an_unreadable_image_is_named(tmp_path, content):
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(OSError, match=rf"cannot read the image {tmp_path / 'a.png'} .*: replace or remove the file"):
        ImagePaths([tmp_path / "a.png"])[0]


def test_photographs_get_the_transforms_of_the_paper():
    splits = photos()
    assert splits.input_shape == splits.train[0][0].shape == splits.test[0][0].shape == (3, 224, 224)
    crop, flip = splits.train.transform.transforms[:2]
    assert isinstance(crop, T.RandomResizedCrop)
    assert isinstance(flip, T.RandomHorizontalFlip)
    resize, crop = splits.test.transform.transforms[:2]
    assert (resize.size, tuple(crop.size)) == (256, (224, 224))
    with pytest.raises(ValueError, match="resize must be an integer of at least 300, got 256"):
        photos(300, 256)


def test_grey_images_move_by_up_to_the_shift():
    image = torch.zeros(8, 1, 9, 9)
    image[:, 0, 4, 4] = 1
    source = Source(image, torch.arange(8))
    train = grey_splits(source, source, 2, validation_share=0, seed=0).train
    places = {tuple(train[0][0].nonzero()[0, 1:].tolist()) for _ in range(400)}
    assert places == {(row, column) for row in range(2, 7) for column in range(2, 7)}
    assert torch.equal(grey_splits(source, source, 0, validation_share=0, seed=0).train[0][0], image[0])


def test_thumbnails_are_denormalised_and_shrunk_in_proportion():
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 60, 3), dtype=np.uint8))
    to_tensor = T.Compose([T.ToTensor(), T.Normalize((0.5, 0.4, 0.3), (0.2, 0.1, 0.3))])
    whole = thumbnail(to_tensor(photo), to_tensor)
    assert np.abs(whole.transpose(1, 2, 0).astype(int) - np.asarray(photo)).max() <= 1
    assert thumbnail(to_tensor(photo.resize((200, 100))), to_tensor).shape == (3, 32, 64)
    assert (thumbnail(to_tensor(photo) + 100, to_tensor) == 255).all()  # clipped
    raw = torch.randint(0, 256, (1, 28, 28), dtype=torch.uint8)
    assert np.array_equal(thumbnail(raw.float() / 255, lambda image: image), raw.numpy())
    with pytest.raises(ValueError, match=r"got \(2, 3, 3\)"):
        thumbnail(torch.zeros(2, 3, 3), to_tensor)
