"""A user's own folder with one folder of images for each class."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import compress
from pathlib import Path

import torch
from torch import Tensor
from torchvision.datasets.folder import IMG_EXTENSIONS

from .images import ImagePaths, photo_splits
from .splits import MINIMUM_CLASSES, DataSplits, Source, hold_out_classes


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
    sources = [_read(part, {root / name for name in skipped}) for part in _parts(root)]
    if len(sources) == 1:
        keep = MINIMUM_CLASSES * (2 if validation_share else 1)  # for training and validation
        is_test = hold_out_classes(sources[0].labels, test_share, seed, "test_share", keep)
        sources = [_chosen(sources[0], mask) for mask in (~is_test, is_test)]
    elif shared := sorted(set.intersection(*({*(source.class_names or ())} for source in sources))):
        raise ValueError(f"train/ and test/ of {root} must not share classes, but {shared[0]} is in both")
    if any(len(source.labels.unique()) < MINIMUM_CLASSES for source in sources):
        raise ValueError(f"{root} must contain images of at least two training and two test classes")
    return photo_splits(sources[0], sources[1], crop_size, resize, validation_share, seed)


def check_images(root: Path, skip_bad: bool = False) -> list[str]:
    """Read all images; return what cannot be read, and empty classes. Unless `skip_bad`, an error lists them."""
    classes = {folder: paths for part in _parts(root) for folder, paths in class_folders(part).items()}
    images = [path for paths in classes.values() for path in paths]
    with ThreadPoolExecutor() as pool:  # Pillow decodes without the interpreter's lock
        bad = {path: text for path, text in zip(images, pool.map(_problem, images), strict=True) if text}
    problems = bad | {folder: "a class folder without images" for folder, paths in classes.items() if not paths}
    if problems and not skip_bad:
        lines = [f"  {path.relative_to(root)}: {text}" for path, text in problems.items()]
        remedy = "replace or remove them, or leave them out with dataset.ImageFolder.skip_bad=true"
        raise ValueError("\n".join([f"{len(lines)} problems in {root}:", *lines, remedy]))
    return [str(path.relative_to(root)) for path in problems]


def _problem(path: Path) -> str:
    """Why the image cannot be read; empty if it can."""
    try:
        ImagePaths([path])[0]
    except OSError as error:
        return str(error.__cause__).replace(f" {str(path)!r}", "")
    return ""


def _parts(root: Path) -> list[Path]:
    parts = [root / "train", root / "test"]
    return parts if all(part.is_dir() for part in parts) else [root]


def _read(root: Path, skipped: set[Path]) -> Source:
    classes = class_folders(root)
    labels = [(path, label) for label, paths in enumerate(classes.values()) for path in paths if path not in skipped]
    names = [folder.name for folder in classes]
    return Source(ImagePaths([path for path, _ in labels]), torch.tensor([label for _, label in labels]), names)


def class_folders(root: Path) -> dict[Path, list[Path]]:
    """The images of each folder in `root`; hidden files and folders are ignored."""
    if not (folders := sorted(path for path in root.glob("[!.]*") if path.is_dir())):
        raise FileNotFoundError(f"{root} must be a folder that contains one folder of images for each class")
    return {folder: images_in(folder) for folder in folders}


def images_in(folder: Path) -> list[Path]:
    files = (path for path in folder.rglob("*") if not path.name.startswith("."))
    return sorted(path for path in files if path.suffix.lower() in IMG_EXTENSIONS)


def _chosen(source: Source, mask: Tensor) -> Source:
    return Source(ImagePaths(list(compress(source.items.paths, mask))), source.labels[mask], source.class_names)
