"""Omniglot: handwritten characters of 50 alphabets [Lake, Salakhutdinov & Tenenbaum, Science 2015]."""

import contextlib
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision import datasets
from torchvision.transforms import functional as TF

from .archives import guarded_extraction
from .arrays import labels_tensor, load_arrays
from .splits import DataSplits, Source, hold_out_classes, make_splits
from .transforms import grey_transforms

SIZE = 28


def Omniglot(  # noqa: N802  named like a class in configs
    root: str | Path | None = None,
    npz: str | Path | None = None,
    download: bool = False,
    shift: int = 2,
    validation_share: float = 0.25,
    seed: int = 0,
) -> DataSplits:
    """Ink bright, 28×28, in [0, 1]; training images are shifted by up to `shift` pixels.

    Either `root`, the folder of torchvision's copy (964 background characters to train, 659 evaluation characters to
    test; `download` fetches it), or `npz`, a file with x_train (n, 28, 28), y_train, x_test, y_test.
    """
    if (root is None) == (npz is None):
        raise ValueError(f"Omniglot takes either root (a folder) or npz (a file), got root={root!r}, npz={npz!r}")
    if npz is not None and download:
        raise ValueError("Omniglot: download fetches torchvision's copy into root; it does not go with npz")
    train, test = _from_npz(npz) if npz is not None else _from_torchvision(Path(str(root)).expanduser(), download)
    train_transform, plain_transform = grey_transforms(shift)
    return make_splits(
        train=train,
        test=test,
        held_out=hold_out_classes(train.labels, validation_share, seed),
        train_transform=train_transform,
        plain_transform=plain_transform,
        input_shape=tuple(train.items[0].shape),
    )


def _from_npz(npz: str | Path) -> tuple[Source, Source]:
    arrays = load_arrays(npz)
    sources = []
    for part in ("train", "test"):
        images = arrays[f"x_{part}"]
        _check_images(npz, part, images)
        sources.append(Source(torch.from_numpy(images)[:, None], labels_tensor(arrays[f"y_{part}"])))
    return sources[0], sources[1]


def _check_images(npz: str | Path, part: str, images: np.ndarray) -> None:
    if images.ndim != 3 or images.shape[1:] != (SIZE, SIZE):
        raise ValueError(f"npz: x_{part} of {npz} must be (items, {SIZE}, {SIZE}), got {images.shape}")
    white = 255.0 if images.dtype == np.uint8 else 1.0
    if images.dtype != np.uint8 and (images.dtype.kind != "f" or images.min() < 0 or images.max() > 1):
        raise ValueError(
            f"npz: x_{part} of {npz} must be bytes or floats in [0, 1], "
            f"got {images.dtype} in [{images.min()}, {images.max()}]"
        )
    if float(images.mean()) > white / 2:  # strokes never cover half of the page
        raise ValueError(f"npz: the ink of x_{part} of {npz} must be bright on a dark page: invert the images")


class _Drawings:
    """torchvision's drawings, dark on white at 105×105, as bright bytes (1, 28, 28), in the given order."""

    def __init__(self, drawings: datasets.Omniglot, order: list[int]) -> None:
        self.drawings = drawings
        self.order = order

    def __getitem__(self, index: int) -> Tensor:
        image: Image.Image = self.drawings[self.order[index]][0]
        small = image.convert("L").resize((SIZE, SIZE), Image.Resampling.BOX)
        return 255 - TF.pil_to_tensor(small)

    def __len__(self) -> int:
        return len(self.order)


def _from_torchvision(root: Path, download: bool) -> tuple[Source, Source]:
    return _drawings(root, download, background=True), _drawings(root, download, background=False)


def _drawings(root: Path, download: bool, background: bool) -> Source:
    try:
        with guarded_extraction() if download else contextlib.nullcontext():
            drawings = datasets.Omniglot(str(root), background=background, download=download)
    except (RuntimeError, FileNotFoundError) as error:
        folder = root / datasets.Omniglot.folder
        raise FileNotFoundError(
            f"Omniglot is not in {folder} (images_background and images_evaluation with their .zip files are "
            f"expected): fix root, or fetch it with `download: true`. torchvision says: {error}"
        ) from error
    except OSError as error:
        raise OSError(
            f"Omniglot: the download of {datasets.Omniglot.download_url_prefix} into {root} failed: {error}. "
            "Try again, or use an .npz with `npz`"
        ) from error
    # Private, but the only lists that do not open 19,280 images. torchvision numbers the characters in whatever order
    # the file system lists them: sorted by name, a seed holds out the same ones everywhere.
    files, names = drawings._flat_character_images, drawings._characters
    order = sorted(range(len(files)), key=lambda i: (names[files[i][1]], files[i][0]))
    rank = {name: label for label, name in enumerate(sorted(names))}
    return Source(_Drawings(drawings, order), torch.tensor([rank[names[files[i][1]]] for i in order]))
