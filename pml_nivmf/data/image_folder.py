"""A user's own folder with one folder of images for each class."""

from pathlib import Path

import torch
from torchvision.datasets.folder import IMG_EXTENSIONS

from .images import ImagePaths, photo_splits
from .splits import MINIMUM_CLASSES, DataSplits, Source, hold_out_classes


def ImageFolder(  # noqa: N802  named like a class in configs
    root: str | Path,
    test_share: float = 0.5,
    crop_size: int = 224,
    resize: int = 256,
    validation_share: float = 0.25,
    seed: int = 0,
) -> DataSplits:
    """Images in root/<class>/…, or in root/train/<class>/… and root/test/<class>/… with different classes.

    root: hidden files and folders in it are ignored.
    test_share: share of the classes that are the unseen test classes. Not used if root contains train/ and test/.
    """
    root = Path(root).expanduser()
    if (root / "train").is_dir() and (root / "test").is_dir():
        train = _class_folders(root / "train", at_least=2 * MINIMUM_CLASSES)
        test = _class_folders(root / "test", at_least=MINIMUM_CLASSES)
        shared = sorted({folder.name for folder in train} & {folder.name for folder in test})
        if shared:
            raise ValueError(f"train/ and test/ of {root} must not share classes, but {shared[0]} is in both")
    else:
        train, test = _split(_class_folders(root, at_least=3 * MINIMUM_CLASSES), test_share, seed)
    return photo_splits(_source(train), _source(test), crop_size, resize, validation_share, seed)


def _split(folders: list[Path], test_share: float, seed: int) -> tuple[list[Path], list[Path]]:
    """(training, test) folders; the training classes are split once more, for validation."""
    mask = hold_out_classes(torch.arange(len(folders)), test_share, seed, "test_share", keep=2 * MINIMUM_CLASSES)
    test = {folder for folder, held_out in zip(folders, mask.tolist(), strict=True) if held_out}
    return [folder for folder in folders if folder not in test], sorted(test)


def _class_folders(root: Path, at_least: int) -> list[Path]:
    if not root.is_dir():
        raise FileNotFoundError(
            f"{root} does not exist: root must be a folder with one folder of images for each class"
        )
    folders = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    if len(folders) < at_least:
        raise ValueError(f"{root} contains {len(folders)} class folders, but at least {at_least} are needed")
    return folders


def _source(folders: list[Path]) -> Source:
    images = [(path, label) for label, folder in enumerate(folders) for path in _images_in(folder)]
    return Source(ImagePaths([path for path, _ in images]), torch.tensor([label for _, label in images]))


def _images_in(folder: Path) -> list[Path]:
    files = (path for path in folder.rglob("*") if not path.name.startswith("."))
    images = sorted(path for path in files if path.suffix.lower() in IMG_EXTENSIONS)
    if not images:
        raise ValueError(f"the class folder {folder} contains no images ({', '.join(IMG_EXTENSIONS)})")
    return images
