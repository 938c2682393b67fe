"""Degraded images: of a known strength, the same on every access."""

import pytest
import torch
from scipy import ndimage

from pml_nivmf.data import DegradedItems

KINDS = ("crop", "occlude", "blur", "noise")


class Images:
    def __init__(self, images):
        self.images = images
        self.labels = torch.arange(len(images)) % 3

    def __getitem__(self, index):
        return self.images[index], int(self.labels[index])

    def __len__(self):
        return len(self.images)


@pytest.fixture
def images():
    return Images(torch.rand(6, 3, 20, 30, generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("kind", KINDS)
def test_images_depend_on_index_and_seed_only(images, kind):
    first, again = DegradedItems(images, kind, 0.5, seed=3), DegradedItems(images, kind, 0.5, seed=3)
    backwards = {i: again[i][0] for i in reversed(range(6))}
    torch.rand(5)  # the global generator has no influence
    for i in range(6):
        assert torch.equal(first[i][0], backwards[i])
        assert first[i][0].shape == (3, 20, 30)
        assert first[i][0].dtype == torch.float32
        assert first[i][1] == i % 3
        assert not torch.equal(first[i][0], images[i][0])
        assert torch.equal(DegradedItems(images, kind, 0.0)[i][0], images[i][0])
    if kind != "blur":  # nothing is random there
        other = DegradedItems(images, kind, 0.5, seed=4)
        assert any(not torch.equal(first[i][0], other[i][0]) for i in range(6))
    assert torch.equal(first.labels, images.labels)


@pytest.mark.parametrize("strength", [0.25, 0.5, 1.0])
def test_occlusion_covers_the_share(strength):
    bright = Images(torch.ones(8, 1, 40, 40))
    for image, _ in (DegradedItems(bright, "occlude", strength)[i] for i in range(8)):
        assert (image == 0).float().mean().item() == pytest.approx(strength, abs=0.03)  # whole pixels
        assert set(image.unique().tolist()) <= {0.0, 1.0}


def test_a_crop_shows_the_share():
    """On a ramp the width of the window is the range of the values."""
    ramp = Images(torch.linspace(0, 1, 101).expand(5, 1, 101, 101).clone())
    windows = [DegradedItems(ramp, "crop", 0.75)[i][0] for i in range(5)]
    for image in windows:
        assert (image.max() - image.min()).item() == pytest.approx(0.5, abs=0.02)
        assert (image[:, :, 1:] >= image[:, :, :-1]).all()
    assert len({round(image.min().item(), 3) for image in windows}) > 1


def test_blur_is_scipys():
    """Away from the border, which the two treat differently."""
    point = torch.zeros(1, 1, 65, 65)
    point[0, 0, 32, 32] = 1.0
    expected = ndimage.gaussian_filter(point[0, 0].double().numpy(), sigma=0.25 / 8 * 65, truncate=3.4)
    blurred = DegradedItems(Images(point), "blur", 0.25)[0][0][0]
    torch.testing.assert_close(blurred.double(), torch.from_numpy(expected), rtol=0, atol=2e-3 * expected.max())


def test_noise_has_the_strength_of_each_item():
    strengths = torch.linspace(0, 0.9, 6)
    degraded = DegradedItems(Images(torch.full((6, 1, 100, 100), 0.3)), "noise", strengths)
    changes = torch.stack([degraded[i][0] - 0.3 for i in range(6)])
    assert changes.std((1, 2, 3)).tolist() == pytest.approx(strengths.tolist(), rel=0.03)
    assert changes.mean((1, 2, 3)).tolist() == pytest.approx([0.0] * 6, abs=0.03)
    assert degraded.strengths.tolist() == pytest.approx(strengths.tolist())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("melt", 0.5), "kind must be one of crop, occlude, blur, noise, got 'melt'"),
        (("crop", 1.5), r"strength must lie in \[0, 1\], got 1.5"),
        (("crop", 0.5, -1), "seed must be an integer of at least 0"),
    ],
)
def test_invalid_arguments(images, arguments, message):
    with pytest.raises(ValueError, match=message):
        DegradedItems(images, *arguments)
