"""Data sets as `DataSplits`: training, validation and test parts of different classes. Imports PML and torchvision.

Every data set takes `validation_share`, the share of the training classes that are held out for validation (0: none),
and `seed`, which fixes these classes. Photographs have `crop_size` pixels on each side; for evaluation, the shorter
side is resized to `resize` first. To add a data set, write a function that ends in `make_splits(...)` and add its name
here.
"""

from .arrays import FeatureArrays, MapArrays
from .degraded import DegradedItems
from .glyphs import Glyphs
from .image_folder import ImageFolder
from .omniglot import Omniglot
from .pml_datasets import CUB, Cars196, StanfordOnlineProducts
from .splits import DataSplits, LabelledItems, class_split

__all__ = [
    "CUB",
    "Cars196",
    "DataSplits",
    "DegradedItems",
    "FeatureArrays",
    "Glyphs",
    "ImageFolder",
    "LabelledItems",
    "MapArrays",
    "Omniglot",
    "StanfordOnlineProducts",
    "class_split",
]
