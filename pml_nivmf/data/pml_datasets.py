"""PML's CUB, Cars196 and Stanford Online Products: half of the classes for training, the unseen other half for testing.

PML's labels start at 1, its images are not converted to RGB and it has no validation part: all three are corrected.
"""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import torch
from pytorch_metric_learning import datasets

from .images import ImagePaths, photo_splits
from .splits import DataSplits, Source


def _factory(dataset: type[datasets.BaseDataset], title: str, lists: tuple[str, ...]) -> Callable[..., DataSplits]:
    """The data sets differ in PML's class and in the lists that PML reads."""

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
            remedy = "correct root, or download the data set with `download: true`"
            raise FileNotFoundError(f"{root} does not contain {dataset.__name__}, {', '.join(missing)}: {remedy}")
        if missing:  # PML's constructor would download to empty folders only
            root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=root) as folder:  # a full disk leaves nothing behind
                dataset.download_and_remove(SimpleNamespace(root=folder))
                for path in Path(folder).iterdir():
                    shutil.move(path, root)
        parts = [dataset(str(root), split=split) for split in ("train", "test")]
        train, test = (Source(ImagePaths(part.paths), torch.tensor(part.labels)) for part in parts)
        return photo_splits(train, test, crop_size, resize, validation_share, seed)

    build.__name__ = build.__qualname__ = dataset.__name__
    build.__doc__ = f"""{title}

    root: the folder that contains {", ".join(lists)}.
    download: download the data set to `root` if it is missing.
    """
    return build


_CUB_LISTS = "CUB_200_2011/images.txt", "CUB_200_2011/image_class_labels.txt"
_CARS_LISTS = "names.csv", "anno_train.csv", "anno_test.csv"
_SOP = "Stanford_Online_Products/Ebay_train.txt", "Stanford_Online_Products/Ebay_test.txt"
CUB = _factory(datasets.CUB, "CUB-200-2011, 200 species of birds.", _CUB_LISTS)
Cars196 = _factory(datasets.Cars196, "Stanford Cars, 196 models of cars.", _CARS_LISTS)
StanfordOnlineProducts = _factory(datasets.StanfordOnlineProducts, "Stanford Online Products, 22,634 products.", _SOP)
