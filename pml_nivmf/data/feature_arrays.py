"""Precomputed embeddings, for training heads on frozen features."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .arrays import labels_tensor, load_arrays
from .splits import DataSplits, Source, hold_out_classes, make_splits
from .transforms import FirstView, RandomView


def FeatureArrays(  # noqa: N802  named like a class in configs
    npz: str | Path,
    standardize: bool = True,
    validation_share: float = 0.25,
    seed: int = 0,
) -> DataSplits:
    """An .npz of x_train (n, d), y_train, x_test, y_test and, optionally, views_train (views, n, d).

    A training item is drawn by chance among the original and its extra views; evaluation uses the originals.
    `standardize` brings each axis to mean 0 and deviation 1 on the originals that are trained on (validation classes
    excluded) and applies the same map everywhere.
    """
    arrays = load_arrays(npz, optional=("views_train",))
    _check_shapes(npz, arrays)
    train, test = _stack_views(arrays), torch.from_numpy(arrays["x_test"]).float()[:, None]
    labels = labels_tensor(arrays["y_train"])
    held_out = hold_out_classes(labels, validation_share, seed)
    if standardize:
        originals = train[~held_out, 0]
        train, test = _standardize(train, originals), _standardize(test, originals)
    return make_splits(
        train=Source(train, labels),
        test=Source(test, labels_tensor(arrays["y_test"])),
        held_out=held_out,
        train_transform=RandomView(),
        plain_transform=FirstView(),
        input_shape=tuple(train.shape[2:]),
    )


def _stack_views(arrays: dict[str, np.ndarray]) -> Tensor:
    """(n, 1 + views, d), the original first."""
    originals = torch.from_numpy(arrays["x_train"]).float()[:, None]
    if "views_train" not in arrays:
        return originals
    return torch.cat([originals, torch.from_numpy(arrays["views_train"]).float().transpose(0, 1)], dim=1)


def _standardize(features: Tensor, reference: Tensor) -> Tensor:
    """Each axis to mean 0 and deviation 1 of the reference; a constant axis is centred, its rounding not amplified."""
    deviation, mean = torch.std_mean(reference, dim=0, correction=0)
    constant = deviation <= 1e-6 * reference.abs().amax(dim=0)
    return (features - mean) / deviation.masked_fill(constant, 1.0)


def _check_shapes(npz: str | Path, arrays: dict[str, np.ndarray]) -> None:
    train, test = arrays["x_train"].shape, arrays["x_test"].shape
    if len(train) != 2 or len(test) != 2 or train[1] != test[1]:
        raise ValueError(
            f"npz: x_train and x_test of {npz} must be (items, features), equally wide, got {train}, {test}"
        )
    views = arrays.get("views_train")
    if views is None:
        return
    if views.ndim != 3 or views.shape[1:] != train or views.dtype.kind not in "fiu":
        raise ValueError(
            f"npz: views_train of {npz} must be numbers (views, *{train}), got {views.dtype} {views.shape}"
        )
    if not np.isfinite(views).all():
        raise ValueError(f"npz: views_train of {npz} holds NaN or infinity")
