"""Precomputed embeddings, for training heads on frozen features."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .arrays import labels_tensor, load_arrays
from .splits import DataSplits, Source, hold_out_classes, make_splits
from .transforms import FirstView, RandomView

_DEGRADED = "x_test_degraded"


def FeatureArrays(  # noqa: N802  named like a class in configs
    npz: str | Path,
    standardize: bool = True,
    validation_share: float = 0.25,
    seed: int = 0,
) -> DataSplits:
    """An .npz of x_train (n, d), y_train, x_test, y_test and, optionally, views_train (views, n, d) and
    x_test_degraded, the test items seen less well, in the order of x_test.

    A training item is drawn by chance among the original and its extra views; evaluation uses the originals.
    `standardize` brings each axis to mean 0 and deviation 1 on the originals that are trained on (validation classes
    excluded) and applies the same map everywhere.
    """
    arrays = load_arrays(npz, optional=("views_train", _DEGRADED))
    _check_shapes(npz, arrays)
    parts = {"train": _stack_views(arrays)}
    parts |= {name: _one_view(arrays[name]) for name in ("x_test", _DEGRADED) if name in arrays}
    labels, test_labels = labels_tensor(arrays["y_train"]), labels_tensor(arrays["y_test"])
    held_out = hold_out_classes(labels, validation_share, seed)
    if standardize:
        originals = parts["train"][~held_out, 0]
        parts = {name: _standardize(part, originals) for name, part in parts.items()}
    return make_splits(
        train=Source(parts["train"], labels),
        test=Source(parts["x_test"], test_labels),
        held_out=held_out,
        train_transform=RandomView(),
        plain_transform=FirstView(),
        input_shape=tuple(parts["train"].shape[2:]),
        test_degraded=Source(parts[_DEGRADED], test_labels) if _DEGRADED in parts else None,
    )


def _one_view(features: np.ndarray) -> Tensor:
    return torch.from_numpy(features).float()[:, None]


def _stack_views(arrays: dict[str, np.ndarray]) -> Tensor:
    """(n, 1 + views, d), the original first."""
    originals = _one_view(arrays["x_train"])
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
    if "views_train" in arrays:
        views = arrays["views_train"]
        _check_more(npz, "views_train", views, views.ndim == 3 and views.shape[1:] == train, f"(views, *{train})")
    if _DEGRADED in arrays:
        degraded = arrays[_DEGRADED]
        _check_more(npz, _DEGRADED, degraded, degraded.shape == test, f"{test} like x_test")


def _check_more(npz: str | Path, name: str, array: np.ndarray, fits: bool, expected: str) -> None:
    if not fits or array.dtype.kind not in "fiu":
        raise ValueError(f"npz: {name} of {npz} must be numbers {expected}, got {array.dtype} {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"npz: {name} of {npz} holds NaN or infinity")
