"""Omniglot: handwritten characters of 50 alphabets [Lake, Salakhutdinov & Tenenbaum, Science 2015]."""

from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torchvision import datasets
from torchvision.transforms import functional as TF

from .arrays import load_arrays
from .images import ImagePaths, grey_splits
from .splits import DataSplits, Source

SIZE = 28


def Omniglot(  # noqa: N802  named like a class in configs
    root: str | Path | None = None,
    npz: str | Path | None = None,
    download: bool = False,
    shift: int = 2,
    validation_share: float = 0.25,
    seed: int = 0,
) -> DataSplits:
    """Drawings (1, 28, 28) in [0, 1], bright ink on a dark background. Give either `root` or `npz`.

    root: the folder that contains torchvision's omniglot-py/: 964 background characters for training, 659 evaluation
        characters for testing.
    npz: a file with x_train (n, 28, 28), y_train, x_test, y_test; drawings are bytes, or floats in [0, 1].
    download: let torchvision download the data to `root` if they are missing.
    shift: training images are shifted by up to this many pixels.
    """
    if (root is None) == (npz is None):
        raise ValueError(f"Omniglot takes either root (a folder) or npz (a file), got root={root!r}, npz={npz!r}")
    if npz is None:
        train, test = _from_folder(Path(str(root)).expanduser(), download)
    else:
        arrays = load_arrays(npz, dimensions=2)
        train, test = (Source(arrays[f"x_{part}"][:, None], arrays[f"y_{part}"]) for part in ("train", "test"))
    return grey_splits(train, test, shift, validation_share, seed)


def _from_folder(root: Path, download: bool) -> list[Source]:
    folders = [root / datasets.Omniglot.folder / part for part in ("images_background", "images_evaluation")]
    missing = [folder for folder in folders if not folder.is_dir()]
    if missing and not download:
        raise FileNotFoundError(f"{missing[0]} does not exist: correct root, or download with `download: true`")
    if missing:
        for background in (True, False):
            datasets.Omniglot(str(root), background=background, download=True)
    return [_source(folder) for folder in folders]


def _source(folder: Path) -> Source:
    """The drawings in folder/alphabet/character/, sorted, so that a seed holds out the same characters everywhere."""
    files = sorted(folder.glob("*/*/*.png"))
    labels = {character: label for label, character in enumerate(dict.fromkeys(file.parent for file in files))}
    return Source(ImagePaths(files, convert=_to_bytes), torch.tensor([labels[file.parent] for file in files]))


def _to_bytes(drawing: Image.Image) -> Tensor:
    """Dark on white, 105×105 -> bright bytes (1, 28, 28)."""
    return 255 - TF.pil_to_tensor(drawing.convert("L").resize((SIZE, SIZE), Image.Resampling.BOX))
