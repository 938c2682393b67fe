"""A user's own folder with one folder of images for each class."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torchvision.datasets.folder import IMG_EXTENSIONS

from .images import ImagePaths, photo_splits
from .splits import MINIMUM_CLASSES, DataSplits, Source, hold_out_classes

_Classes = dict[Path, list[Path]]  # class folder -> images


def ImageFolder(  # noqa: N802  named like a class in configs
    root: str | Path,
    test_share: float = 0.5,
    crop_size: int = 224,
    resize: int = 256,
    skip_bad: bool | Sequence[str] = False,
    validation_share: float = 0.25,
    seed: int = 0,
) -> DataSplits:
    """Images in root/<class>/…, or in root/train/<class>/… and root/test/<class>/… with different classes.

    root: hidden files and folders in it are ignored.
    test_share: share of the classes that are the unseen test classes. Not used if root contains train/ and test/.
    skip_bad: leave out images that cannot be read and classes without images; they are an error otherwise. All images
        are read to find out, unless this is a list of those to leave out, as `check_images` returns it.
    """
    root = Path(root).expanduser()
    skipped = check_images(root, skip_bad) if isinstance(skip_bad, bool) else skip_bad
    train, *others = (_without(classes, {root / name for name in skipped}) for classes in _read(root))
    needed = MINIMUM_CLASSES * (2 if validation_share else 1)  # for training and validation
    train, test = (train, *others) if others else _split(train, test_share, seed, needed)
    for name, classes, at_least in (("training", train, needed), ("test", test, MINIMUM_CLASSES)):
        if len(classes) < at_least:
            raise ValueError(f"{root} has {len(classes)} {name} classes with images, but needs at least {at_least}")
    shared = sorted({folder.name for folder in train} & {folder.name for folder in test})
    if shared:
        raise ValueError(f"train/ and test/ of {root} must not share classes, but {shared[0]} is in both")
    return photo_splits(_source(train), _source(test), crop_size, resize, validation_share, seed)


def check_images(root: Path, skip_bad: bool = False) -> list[str]:
    """Read all images; return those that cannot be read, relative to root. Unless `skip_bad`, an error lists them."""
    classes = {folder: paths for part in _read(root) for folder, paths in part.items()}
    with ThreadPoolExecutor() as pool:  # Pillow decodes without the interpreter's lock
        problems = dict(pool.map(_problem, [path for paths in classes.values() for path in paths]))
    bad = {path.relative_to(root): problem for path, problem in problems.items() if problem}
    empty = {folder.relative_to(root): "a class folder without images" for folder in classes if not classes[folder]}
    if (bad or empty) and not skip_bad:
        lines = [f"  {path}: {problem}" for path, problem in (bad | empty).items()]
        remedy = "replace or remove them, or leave them out with dataset.ImageFolder.skip_bad=true"
        raise ValueError("\n".join([f"{len(lines)} problems in {root}:", *lines, remedy]))
    return sorted(map(str, bad))


def _problem(path: Path) -> tuple[Path, str]:
    """Why the image cannot be read; empty if it can."""
    try:
        ImagePaths([path])[0]
    except OSError as error:
        return path, str(error.__cause__).replace(f" {str(path)!r}", "")
    return path, ""


def _read(root: Path) -> list[_Classes]:
    """The classes of train/ and test/, or all classes."""
    parts = [root / "train", root / "test"]
    return [class_folders(part) for part in (parts if all(part.is_dir() for part in parts) else [root])]


def class_folders(root: Path) -> _Classes:
    """The images of each folder in `root`; hidden files and folders are ignored."""
    paths = root.iterdir() if root.is_dir() else []
    folders = sorted(path for path in paths if path.is_dir() and not path.name.startswith("."))
    if not folders:
        problem = "contains no folders" if root.is_dir() else "does not exist"
        raise FileNotFoundError(f"{root} {problem}: root must be a folder with one folder of images for each class")
    return {folder: images_in(folder) for folder in folders}


def images_in(folder: Path) -> list[Path]:
    files = (path for path in folder.rglob("*") if not path.name.startswith("."))
    return sorted(path for path in files if path.suffix.lower() in IMG_EXTENSIONS)


def _without(classes: _Classes, skipped: set[Path]) -> _Classes:
    remaining = {folder: [path for path in paths if path not in skipped] for folder, paths in classes.items()}
    return {folder: paths for folder, paths in remaining.items() if paths}


def _split(classes: _Classes, test_share: float, seed: int, keep: int) -> tuple[_Classes, _Classes]:
    """(training, test) classes; the training classes are split once more, for validation."""
    is_test = hold_out_classes(torch.arange(len(classes)), test_share, seed, "test_share", keep).tolist()
    items = list(zip(classes.items(), is_test, strict=True))
    return dict(item for item, held_out in items if not held_out), dict(item for item, held_out in items if held_out)


def _source(classes: _Classes) -> Source:
    images = [(path, label) for label, paths in enumerate(classes.values()) for path in paths]
    labels = torch.tensor([label for _, label in images])
    return Source(ImagePaths([path for path, _ in images]), labels, [folder.name for folder in classes])
