"""Data sets as `DataSplits`: training, class-disjoint validation, unseen test classes. Imports PML and torchvision.

To add one: a file with a function that ends in `make_splits(...)` and its name here.
"""

from .closed_set import with_closed_set
from .degraded import DegradedItems
from .feature_arrays import FeatureArrays
from .glyphs import Glyphs
from .image_folder import ImageFolder
from .omniglot import Omniglot
from .pml_datasets import CUB, Cars196, StanfordOnlineProducts
from .splits import DataSplits, LabelledItems
from .thumbnails import thumbnail, thumbnails

__all__ = [
    "CUB",
    "Cars196",
    "DataSplits",
    "DegradedItems",
    "FeatureArrays",
    "Glyphs",
    "ImageFolder",
    "LabelledItems",
    "Omniglot",
    "StanfordOnlineProducts",
    "thumbnail",
    "thumbnails",
    "with_closed_set",
]
