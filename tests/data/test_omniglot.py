"""Omniglot from .npz files and from torchvision's folder."""

import numpy as np
import pytest
import torch
from torchvision import datasets

from pml_nivmf.data import Omniglot

from .fakes import stacked, write_image


def drawings(path, dtype):
    """Eight characters with three drawings each: one stroke, bright on dark."""
    images = np.zeros((24, 28, 28))
    for i in range(24):
        images[i, 5:20, i // 3 + 6] = 1.0
    images = (images * 255).astype(dtype) if dtype == np.uint8 else images.astype(dtype)
    labels = np.repeat(np.arange(8), 3)
    np.savez(path, x_train=images, y_train=labels, x_test=images, y_test=labels)
    return path


@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
def test_npz(tmp_path, dtype):
    splits = Omniglot(npz=drawings(tmp_path / "o.npz", dtype=dtype))
    assert splits.num_classes == 6
    assert splits.input_shape == (1, 28, 28)
    plain, shifted = stacked(splits.train_plain), stacked(splits.train)
    assert plain.dtype == torch.float32
    assert sorted(plain.unique().tolist()) == [0.0, 1.0]
    assert not torch.equal(shifted, plain)
    assert torch.equal(shifted.sum((1, 2, 3)), plain.sum((1, 2, 3)))
    assert torch.equal(stacked(Omniglot(npz=tmp_path / "o.npz", shift=0).train), plain)


def test_wrong_arguments(tmp_path):
    for arguments in ({}, {"root": tmp_path, "npz": tmp_path / "o.npz"}):
        with pytest.raises(ValueError, match=r"either root .* or npz"):
            Omniglot(**arguments)
    with pytest.raises(FileNotFoundError, match=r"images_background does not exist: .*`download: true`"):
        Omniglot(root=tmp_path / "nowhere")


def omniglot_folder(root):
    """Two alphabets with four characters for training, one for testing; the ink is ten times the character's number."""
    for part, alphabets in (("images_background", ("Latin", "Greek")), ("images_evaluation", ("Angelic",))):
        for alphabet in alphabets:
            for character in (3, 1, 2, 0):
                for i in range(2):
                    folder = root / "omniglot-py" / part / alphabet / f"character{character:02d}"
                    write_image(folder / f"{character}_{i}.png", shade=255 - 10 * character, mode="L", size=(105, 105))
    return root


def test_folder_is_sorted_inverted_and_resized(tmp_path):
    splits = Omniglot(root=omniglot_folder(tmp_path))
    assert splits.num_classes == 6
    assert splits.input_shape == (1, 28, 28)
    assert splits.test.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    for image, label in splits.test:
        assert torch.allclose(image, torch.full((1, 28, 28), 10 * label / 255), atol=1e-6)
    assert [path.split("/")[-3] for path in splits.train.items.paths] == ["Greek"] * 8 + ["Latin"] * 8


def test_torchvision_downloads_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.Omniglot, "download", lambda self: omniglot_folder(tmp_path))
    monkeypatch.setattr(datasets.Omniglot, "_check_integrity", lambda self: True)  # there is no archive
    assert Omniglot(root=tmp_path, download=True).num_classes == 6
    monkeypatch.setattr(datasets.Omniglot, "download", lambda self: pytest.fail("downloaded again"))
    assert Omniglot(root=tmp_path, download=True).num_classes == 6
