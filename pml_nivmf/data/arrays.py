"""Arrays from .npz files, and features from them for training heads on a frozen trunk."""

from operator import itemgetter
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .splits import DataSplits, Source, hold_out_classes, make_splits

_REQUIRED = ("x_train", "y_train", "x_test", "y_test")


def FeatureArrays(  # noqa: N802  named like a class in configs
    npz: str | Path, standardize: bool = True, validation_share: float = 0.25, seed: int = 0
) -> DataSplits:
    """Precomputed features.

    npz: a file with x_train (n, d), y_train, x_test, y_test and, optionally, views_train (views, n, d), features of
        augmented images, and x_test_degraded, features of degraded test images, in the order of x_test.
        Training draws an item at random from the original and its views; evaluation uses the originals.
    standardize: scale each feature to mean 0 and standard deviation 1 over the training originals (without validation
        classes), and apply the same map to all arrays.
    """
    arrays = load_arrays(npz, optional=("views_train", "x_test_degraded"))
    _check_shapes(npz, arrays)
    labels, test_labels = arrays.pop("y_train"), arrays.pop("y_test")
    held_out = hold_out_classes(labels, validation_share, seed)
    features = {name: array.float() for name, array in arrays.items()}
    if standardize:
        originals = features["x_train"][~held_out]
        features = {name: _standardize(array, originals) for name, array in features.items()}
    train = features["x_train"][:, None]  # (n, views, d), the original first
    if "views_train" in features:
        train = torch.cat([train, features["views_train"].transpose(0, 1)], dim=1)
    degraded = features.get("x_test_degraded")
    return make_splits(
        train=Source(train, labels),
        test=Source(features["x_test"][:, None], test_labels),
        held_out=held_out,
        train_transform=_random_view,
        plain_transform=itemgetter(0),
        input_shape=tuple(train.shape[2:]),
        test_degraded=None if degraded is None else Source(degraded[:, None], test_labels),
    )


def load_arrays(npz: str | Path, optional: tuple[str, ...] = ()) -> dict[str, Tensor]:
    """x_train, y_train, x_test, y_test and those of the optional arrays that the file contains; all are checked."""
    path = Path(npz).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist: npz must be a file with {', '.join(_REQUIRED)}")
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in (*_REQUIRED, *optional) if name in archive}
    except Exception as error:  # a damaged file raises the errors of numpy, zipfile and zlib
        raise ValueError(f"cannot read {path} as an .npz file: {error}") from error
    missing = [name for name in _REQUIRED if name not in arrays]
    if missing:
        raise ValueError(f"{path} does not contain {', '.join(missing)}")
    for part in ("train", "test"):
        items, labels = arrays[f"x_{part}"], arrays[f"y_{part}"]
        if labels.ndim != 1 or labels.dtype.kind not in "iu":
            raise ValueError(f"y_{part} of {path} must be a 1-D array of integers, got {labels.dtype} {labels.shape}")
        if len(labels) == 0 or items.shape[:1] != labels.shape:
            raise ValueError(f"x_{part} of {path} must have an item for each label, got {items.shape}, {labels.shape}")
        arrays[f"y_{part}"] = labels.astype(np.int64)
    return {name: _tensor(f"{name} of {path}", array) for name, array in arrays.items()}


def _tensor(name: str, array: np.ndarray) -> Tensor:
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{name} must contain numbers, got {array.dtype}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} contains NaN or infinity")
    return torch.from_numpy(array)


def _check_shapes(npz: str | Path, arrays: dict[str, Tensor]) -> None:
    shapes = {name: tuple(array.shape) for name, array in arrays.items()}
    train, test = shapes["x_train"], shapes["x_test"]
    if len(train) != 2 or len(test) != 2 or train[1] != test[1]:
        raise ValueError(f"x_train and x_test of {npz} must be (items, features), equally wide, got {train}, {test}")
    views, degraded = shapes.get("views_train", (0, *train)), shapes.get("x_test_degraded", test)
    if views[1:] != train:
        raise ValueError(f"views_train of {npz} must have the shape (views, {train[0]}, {train[1]}), got {views}")
    if degraded != test:
        raise ValueError(f"x_test_degraded of {npz} must have the shape of x_test, {test}, got {degraded}")


def _standardize(features: Tensor, reference: Tensor) -> Tensor:
    """(x − mean)/std with the statistics of the reference; a constant feature is centred, but not divided."""
    std, mean = torch.std_mean(reference, dim=0, correction=0)
    constant = std <= 1e-6 * reference.abs().amax(dim=0)  # what is left is rounding
    return (features - mean) / std.masked_fill(constant, 1.0)


def _random_view(views: Tensor) -> Tensor:
    return views[int(torch.randint(len(views), ()))]
