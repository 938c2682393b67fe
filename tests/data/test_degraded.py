"""Degraded images: known strength, the same every time, and stronger means less of the image."""

import pytest
import torch
from scipy import ndimage
from torch.utils.data import DataLoader, TensorDataset

from pml_nivmf.data import DegradedItems, Glyphs

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
def test_deterministic_per_index_and_seed(images, kind):
    first, again = DegradedItems(images, kind, 0.5, seed=3), DegradedItems(images, kind, 0.5, seed=3)
    backwards = {i: again[i][0] for i in reversed(range(6))}
    torch.rand(5)  # the global generator has no say
    for i in range(6):
        assert torch.equal(first[i][0], backwards[i])
        assert first[i][0].shape == (3, 20, 30)
        assert first[i][0].dtype == torch.float32
        assert first[i][1] == i % 3
    workers = torch.cat([x for x, _ in DataLoader(first, batch_size=2, num_workers=1)])
    assert torch.equal(workers, torch.stack([first[i][0] for i in range(6)]))
    if kind != "blur":  # which has nothing random
        other = DegradedItems(images, kind, 0.5, seed=4)
        assert any(not torch.equal(first[i][0], other[i][0]) for i in range(6))
    assert torch.equal(first.labels, images.labels)


@pytest.mark.parametrize("kind", KINDS)
def test_strength_zero_changes_nothing(images, kind):
    untouched = DegradedItems(images, kind, 0.0)
    assert all(torch.equal(untouched[i][0], images[i][0]) for i in range(6))


@pytest.mark.parametrize("kind", KINDS)
def test_the_original_is_not_written_to(images, kind):
    before = images.images.clone()
    DegradedItems(images, kind, 0.9)[0]
    assert torch.equal(images.images, before)


@pytest.mark.parametrize("strength", [0.25, 0.5, 1.0])
def test_occlusion_covers_the_share(strength):
    bright = Images(torch.ones(8, 1, 40, 40))
    for image, _ in (DegradedItems(bright, "occlude", strength)[i] for i in range(8)):
        covered = (image == 0).float().mean().item()
        assert covered == pytest.approx(strength, abs=0.03)  # whole pixels
        assert set(image.unique().tolist()) <= {0.0, 1.0}


def test_a_crop_shows_the_share():
    """On a ramp the width of the window is the range of the values."""
    ramp = Images(torch.linspace(0, 1, 101).expand(5, 1, 101, 101).clone())
    windows = [DegradedItems(ramp, "crop", 0.75)[i][0] for i in range(5)]
    for image in windows:
        assert (image.max() - image.min()).item() == pytest.approx(0.5, abs=0.02)
        assert (image[:, :, 1:] >= image[:, :, :-1]).all()
    assert len({round(image.min().item(), 3) for image in windows}) > 1


def test_blur_is_scipys(images):
    """Away from the border, where the two treat the missing pixels differently."""
    point = torch.zeros(1, 1, 65, 65)
    point[0, 0, 32, 32] = 1.0
    deviation = 0.25 / 8 * 65
    expected = ndimage.gaussian_filter(point[0, 0].double().numpy(), deviation, truncate=3.4)
    blurred = DegradedItems(Images(point), "blur", 0.25)[0][0][0]
    torch.testing.assert_close(blurred.double(), torch.from_numpy(expected), rtol=0, atol=2e-3 * expected.max())


def test_noise_has_the_deviation():
    flat = Images(torch.full((2, 1, 200, 200), 0.3))
    noisy = DegradedItems(flat, "noise", 0.4)
    assert noisy[0][0].std().item() == pytest.approx(0.4, rel=0.02)
    assert noisy[0][0].mean().item() == pytest.approx(0.3, abs=0.01)
    assert not torch.equal(noisy[0][0], noisy[1][0])


@pytest.fixture(scope="module")
def glyphs(tmp_path_factory):
    test = Glyphs(cache_dir=tmp_path_factory.mktemp("glyphs"), instances=2, size=24).test
    return Images(torch.stack([test[i][0] for i in range(0, len(test), 7)]))


@pytest.mark.parametrize("kind", KINDS)
def test_stronger_is_further_from_the_original(kind, glyphs):
    far = []
    for strength in (0.1, 0.4, 0.8):
        degraded = DegradedItems(glyphs, kind, strength)
        far.append(sum((degraded[i][0] - glyphs[i][0]).square().mean().item() for i in range(len(glyphs))))
    assert far[0] < far[1] < far[2]


def test_a_strength_an_item(images):
    strengths = torch.linspace(0, 0.9, 6)
    degraded = DegradedItems(images, "noise", strengths)
    change = [(degraded[i][0] - images[i][0]).std().item() for i in range(6)]
    assert change == pytest.approx(strengths.tolist(), rel=0.05)
    assert degraded.strengths.tolist() == pytest.approx(strengths.tolist())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("melt", 0.5), "kind must be one of crop, occlude, blur, noise, got 'melt'"),
        (("crop", 1.5), r"strength must lie in \[0, 1\], got 1.5"),
        (("crop", float("nan")), r"strength must lie in \[0, 1\], got nan"),
        (("crop", [0.1, 0.2]), r"one for each of 6 items, got shape \(2,\)"),
        (("crop", 0.5, -1), "seed must be an integer of at least 0"),
    ],
)
def test_refusals(images, arguments, message):
    with pytest.raises(ValueError, match=message):
        DegradedItems(images, *arguments)


def test_any_data_set_of_pairs(images):
    """Labels at hand are for those who ask for them."""
    pairs = TensorDataset(images.images, images.labels)
    degraded = DegradedItems(pairs, "occlude", 0.5)
    image, label = degraded[4]
    assert torch.equal(image, DegradedItems(images, "occlude", 0.5)[4][0])
    assert label == 1
    with pytest.raises(AttributeError, match="labels"):
        degraded.labels  # noqa: B018


def test_refusals_of_items(images):
    with pytest.raises(ValueError, match="leaves nothing of the image"):
        DegradedItems(images, "crop", [0.5] * 5 + [1.0])
    with pytest.raises(ValueError, match=r"item 0 is torch.float32 of shape \(5,\)"):
        DegradedItems(Images(torch.rand(3, 5)), "noise", 0.5)[0]
