"""PML's CUB, Cars196 and Stanford Online Products: the first half of the classes to train, the other, unseen, to test.

PML's labels start at 1, its images are not all RGB and it has no validation part: all three are mended here.
"""

import contextlib
import tarfile
import zipfile
from pathlib import Path

import torch
from pytorch_metric_learning import datasets

from .archives import guarded_extraction
from .images import ImagePaths
from .splits import DataSplits, Source, hold_out_classes, make_splits
from .transforms import photo_transforms


def CUB(  # noqa: N802  named like a class in configs
    root: str | Path,
    download: bool = False,
    crop_size: int = 224,
    resize: int = 256,
    validation_share: float = 0.25,
    seed: int = 0,
) -> DataSplits:
    """CUB-200-2011 birds; `root` is the folder that holds CUB_200_2011/."""
    expected = ("CUB_200_2011/images.txt", "CUB_200_2011/image_class_labels.txt")
    train, test = _sources(datasets.CUB, root, expected, download)
    return _photo_splits(train, test, crop_size, resize, validation_share, seed)


def Cars196(  # noqa: N802
    root: str | Path,
    download: bool = False,
    crop_size: int = 224,
    resize: int = 256,
    validation_share: float = 0.25,
    seed: int = 0,
) -> DataSplits:
    """Stanford Cars; `root` is the folder that holds names.csv, anno_train.csv, anno_test.csv and car_data/."""
    expected = ("names.csv", "anno_train.csv", "anno_test.csv")
    train, test = _sources(datasets.Cars196, root, expected, download)
    return _photo_splits(train, test, crop_size, resize, validation_share, seed)


def StanfordOnlineProducts(  # noqa: N802
    root: str | Path,
    download: bool = False,
    crop_size: int = 224,
    resize: int = 256,
    validation_share: float = 0.25,
    seed: int = 0,
) -> DataSplits:
    """Stanford Online Products; `root` is the folder that holds Stanford_Online_Products/."""
    expected = ("Stanford_Online_Products/Ebay_train.txt", "Stanford_Online_Products/Ebay_test.txt")
    train, test = _sources(datasets.StanfordOnlineProducts, root, expected, download)
    return _photo_splits(train, test, crop_size, resize, validation_share, seed)


def _photo_splits(
    train: Source, test: Source, crop_size: int, resize: int, validation_share: float, seed: int
) -> DataSplits:
    train_transform, plain_transform = photo_transforms(crop_size, resize)
    return make_splits(
        train=train,
        test=test,
        held_out=hold_out_classes(train.labels, validation_share, seed),
        train_transform=train_transform,
        plain_transform=plain_transform,
        input_shape=(3, crop_size, crop_size),
    )


def _sources(
    dataset: type[datasets.BaseDataset], root: str | Path, expected: tuple[str, ...], download: bool
) -> tuple[Source, Source]:
    root = Path(root).expanduser()
    # PML downloads into a new or empty folder only and passes over any other without a word.
    if not download or (root.is_dir() and any(root.iterdir())):
        _check_files(dataset.__name__, root, expected, download)
    try:
        with guarded_extraction() if download else contextlib.nullcontext():
            train, test = (dataset(str(root), split=split, download=download) for split in ("train", "test"))
    except (OSError, zipfile.BadZipFile, tarfile.TarError) as error:
        if not download:
            raise
        raise RuntimeError(
            f"{dataset.__name__}: the download of {dataset.DOWNLOAD_URL} into {root} failed: {error}. "
            "Empty the folder and try again, or unpack a copy of your own there"
        ) from error
    return _source(train), _source(test)


def _check_files(name: str, root: Path, expected: tuple[str, ...], download: bool) -> None:
    missing = [file for file in expected if not (root / file).is_file()]
    if not missing:
        return
    remedy = "or fetch it with `download: true` into a new folder"
    if download:
        remedy = "`download: true` fetches into a new or empty folder only, so empty this one or name another"
    raise FileNotFoundError(f"{name} is not in the folder {root}: {', '.join(missing)} missing. Fix root, {remedy}.")


def _source(dataset: datasets.BaseDataset) -> Source:
    name = type(dataset).__name__
    if not dataset.paths:
        raise ValueError(f"{name}: the lists in {dataset.root} name no image of the {dataset.split} classes")
    for path in (dataset.paths[0], dataset.paths[-1]):  # a list without its images, before the first epoch meets it
        if not Path(path).is_file():
            raise FileNotFoundError(f"{name}: {path} is listed but missing: unpack the images into {dataset.root}")
    return Source(ImagePaths(dataset.paths), torch.tensor(dataset.labels))
