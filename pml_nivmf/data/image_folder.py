"""A user's own folder of class folders."""

from pathlib import Path

import torch
from torchvision.datasets.folder import IMG_EXTENSIONS

from .images import ImagePaths
from .splits import MINIMUM_CLASSES, DataSplits, Source, hold_out_classes, make_splits
from .transforms import photo_transforms


def ImageFolder(  # noqa: N802  named like a class in configs
    root: str | Path,
    test_share: float = 0.5,
    crop_size: int = 224,
    resize: int = 256,
    validation_share: float = 0.25,
    seed: int = 0,
) -> DataSplits:
    """Images in root/<class>/…; `test_share` of the classes, chosen by `seed`, are the unseen test classes.

    Where root holds the folders train/ and test/, their class folders are used instead, and `test_share` is not.
    `validation_share` is a share of the training classes. Hidden files and folders are passed over.
    """
    root = Path(root).expanduser()
    if not root.is_dir():
        raise FileNotFoundError(
            f"ImageFolder: no folder {root} (a folder with one folder of images a class is expected)"
        )
    given = (root / "train").is_dir() and (root / "test").is_dir()
    train, test = _given_split(root) if given else _split_by_class(root, test_share, seed)
    train_transform, plain_transform = photo_transforms(crop_size, resize)
    return make_splits(
        train=train,
        test=test,
        held_out=hold_out_classes(train.labels, validation_share, seed),
        train_transform=train_transform,
        plain_transform=plain_transform,
        input_shape=(3, crop_size, crop_size),
    )


def _given_split(root: Path) -> tuple[Source, Source]:
    train, test = _class_folders(root / "train"), _class_folders(root / "test")
    shared = sorted({folder.name for folder in train} & {folder.name for folder in test})
    if shared:
        raise ValueError(
            f"ImageFolder: {len(shared)} classes are in both train/ and test/ of {root}, first {shared[0]!r}: test "
            "classes must be unseen. Give each class one place, or a root without train/ and test/ to split by class"
        )
    _check_classes(root / "train", len(train), 2 * MINIMUM_CLASSES, "train and validate")
    _check_classes(root / "test", len(test), MINIMUM_CLASSES, "test")
    return _read_folders(train), _read_folders(test)


def _split_by_class(root: Path, test_share: float, seed: int) -> tuple[Source, Source]:
    folders = _class_folders(root)
    _check_classes(root, len(folders), 3 * MINIMUM_CLASSES, "train, validate and test")
    # a mask of the folders; what stays is split once more, for validation
    test = hold_out_classes(torch.arange(len(folders)), test_share, seed, "test_share", keep=2 * MINIMUM_CLASSES)
    train_folders = [folder for folder, held in zip(folders, test.tolist(), strict=True) if not held]
    test_folders = [folder for folder, held in zip(folders, test.tolist(), strict=True) if held]
    return _read_folders(train_folders), _read_folders(test_folders)


def _class_folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def _check_classes(root: Path, count: int, at_least: int, purpose: str) -> None:
    if count < at_least:
        raise ValueError(
            f"ImageFolder: {root} holds {count} class folders; at least {at_least} are needed to {purpose} "
            "on different classes"
        )


def _read_folders(folders: list[Path]) -> Source:
    """Paths and labels, in the order of the names."""
    paths: list[Path] = []
    labels: list[int] = []
    for label, folder in enumerate(folders):
        images = _images_in(folder)
        paths += images
        labels += [label] * len(images)
    return Source(ImagePaths(paths), torch.tensor(labels))


def _images_in(folder: Path) -> list[Path]:
    images = sorted(
        path for path in folder.rglob("*") if path.suffix.lower() in IMG_EXTENSIONS and not path.name.startswith(".")
    )
    if not images:
        raise ValueError(f"ImageFolder: no images ({' '.join(IMG_EXTENSIONS)}) in {folder}: add some or remove it")
    return images
