"""PML's CUB, Cars196 and Stanford Online Products: half of the classes for training, the unseen other half for testing.

PML's labels start at 1, its images are not converted to RGB and it has no validation part: all three are corrected.
"""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from pytorch_metric_learning import datasets
from torchvision.datasets.utils import download_url

from .images import ImagePaths, photo_splits
from .splits import DataSplits, Source


def _factory(
    dataset: type[datasets.BaseDataset], title: str, archive: str, lists: tuple[str, ...]
) -> Callable[..., DataSplits]:
    """The data sets differ in PML's class, in the name of the downloaded file and in the lists that PML reads."""

    def build(
        root: str | Path,
        download: bool = False,
        crop_size: int = 224,
        resize: int = 256,
        validation_share: float = 0.25,
        seed: int = 0,
    ) -> DataSplits:
        root = Path(root).expanduser()
        missing = [name for name in lists if not (root / name).is_file()]
        if missing and not download:
            raise FileNotFoundError(
                f"{root} does not contain {dataset.__name__}: {', '.join(missing)} missing. "
                "Correct root, or download the data set with `download: true`"
            )
        if missing:
            _download(dataset.DOWNLOAD_URL, archive, root)
        parts = [dataset(str(root), split=split) for split in ("train", "test")]
        train, test = (Source(ImagePaths(part.paths), torch.tensor(part.labels)) for part in parts)
        return photo_splits(train, test, crop_size, resize, validation_share, seed)

    build.__name__ = build.__qualname__ = dataset.__name__
    build.__doc__ = f"""{title}

    root: the folder that contains {", ".join(lists)}.
    download: download the data set to `root` if it is missing.
    """
    return build


CUB = _factory(
    datasets.CUB,
    title="CUB-200-2011, 200 species of birds.",
    archive="CUB_200_2011.tgz",
    lists=("CUB_200_2011/images.txt", "CUB_200_2011/image_class_labels.txt"),
)
Cars196 = _factory(
    datasets.Cars196,
    title="Stanford Cars, 196 models of cars.",
    archive="cars196.zip",
    lists=("names.csv", "anno_train.csv", "anno_test.csv"),
)
StanfordOnlineProducts = _factory(
    datasets.StanfordOnlineProducts,
    title="Stanford Online Products, 22,634 products.",
    archive="sop.zip",
    lists=("Stanford_Online_Products/Ebay_train.txt", "Stanford_Online_Products/Ebay_test.txt"),
)


def _download(url: str, name: str, root: Path) -> None:
    """Not with PML's own download, which skips folders that are not empty and unpacks tar files without a filter."""
    root.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=root) as folder:  # after an interruption or a full disk nothing is left
            archive, unpacked = Path(folder, name), Path(folder, "unpacked")
            download_url(url, folder, name)
            tar_filter: dict[str, Any] = {"filter": "data"} if name.endswith(".tgz") else {}
            shutil.unpack_archive(archive, unpacked, **tar_filter)
            for path in unpacked.iterdir():
                shutil.move(path, root)
    except Exception as error:  # urllib, torchvision, tarfile and zipfile raise their own classes
        message = f"the download of {url} to {root} failed: {error}. Try again, or unpack a copy there"
        raise RuntimeError(message) from error
