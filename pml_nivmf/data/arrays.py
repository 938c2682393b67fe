"""Arrays from .npz files: features, to train a head on a frozen trunk, and maps, to train the upper part of a trunk."""

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .splits import DataSplits, Source, Transform, hold_out_classes, make_splits

_REQUIRED = ("x_train", "y_train", "x_test", "y_test")


def FeatureArrays(  # noqa: N802  named like a class in configs
    npz: str | Path, standardize: bool = True, validation_share: float = 0.25, seed: int = 0
) -> DataSplits:
    """Precomputed features.

    npz: a file with x_train (n, d), y_train, x_test, y_test and, optionally, views_train (views, n, d), features of
        augmented images, and x_train_degraded and x_test_degraded, features of degraded images in the same order.
        Training draws an item at random from the original and its views; evaluation uses the originals.
    standardize: scale each feature to mean 0 and standard deviation 1 over the training originals (without validation
        classes), and apply the same map to all arrays.
    """
    arrays = load_arrays(npz, 1, optional=("views_train", "x_train_degraded", "x_test_degraded"))
    held_out = hold_out_classes(arrays["y_train"], validation_share, seed)
    for name in arrays.keys() - {"y_train", "y_test"}:
        arrays[name] = arrays[name].float()
    if standardize:
        originals = arrays["x_train"][~held_out]
        arrays |= {name: _standardize(array, originals) for name, array in arrays.items() if array.is_floating_point()}
    return _splits(arrays, held_out, random_view, original)


def MapArrays(  # noqa: N802
    npz: str | Path, degraded_share: float = 0.0, validation_share: float = 0.25, seed: int = 0
) -> DataSplits:
    """Precomputed outputs of a trunk's lower part, to train the upper part (`TimmTrunk` with `from_stage`).

    npz: a file as for FeatureArrays, with maps (channels, height, width) as items and, optionally, step (channels,):
        maps of integers are multiplied by it when they are read, which keeps a large file in memory as bytes.
    degraded_share: the probability that training draws an item's degraded version.
    """
    arrays = load_arrays(npz, 3, optional=("views_train", "x_train_degraded", "x_test_degraded", "step"))
    step = arrays.pop("step", torch.ones(arrays["x_train"].shape[1]))[:, None, None].float()
    if not 0 <= degraded_share < 1:
        raise ValueError(f"degraded_share must be at least 0 and less than 1, got {degraded_share}")
    if degraded_share and "x_train_degraded" not in arrays:
        raise ValueError(f"degraded_share={degraded_share} needs x_train_degraded, which {npz} does not contain")
    held_out = hold_out_classes(arrays["y_train"], validation_share, seed)
    draw = partial(random_view, step=step, degraded_share=degraded_share)
    return _splits(arrays, held_out, draw, partial(original, step=step), bool(degraded_share))


def _splits(
    arrays: dict[str, Tensor], held_out: Tensor, draw: Transform, plain: Transform, draws_degraded: bool = False
) -> DataSplits:
    """Training items are (versions, …): the original, its views and, if degraded ones are drawn, the degraded one."""
    versions = [arrays["x_train"][None]]
    if "views_train" in arrays:
        versions.append(arrays["views_train"])
    if draws_degraded:
        versions.append(arrays["x_train_degraded"][None])
    train = torch.cat(versions).transpose(0, 1)
    degraded = {
        f"{part}_degraded": Source(arrays[f"x_{part}_degraded"][:, None], arrays[f"y_{part}"])
        for part in ("train", "test")
        if f"x_{part}_degraded" in arrays
    }
    return make_splits(
        train=Source(train, arrays["y_train"]),
        test=Source(arrays["x_test"][:, None], arrays["y_test"]),
        held_out=held_out,
        train_transform=draw,
        plain_transform=plain,
        input_shape=tuple(train.shape[2:]),
        **degraded,
    )


def random_view(views: Tensor, step: Tensor | float = 1.0, degraded_share: float = 0.0) -> Tensor:
    """The last of the views (versions, …) with the probability `degraded_share`, otherwise one of the others."""
    if degraded_share:
        return (views[-1] if torch.rand(()) < degraded_share else random_view(views[:-1])) * step
    return views[int(torch.randint(len(views), ()))] * step


def original(views: Tensor, step: Tensor | float = 1.0) -> Tensor:
    return views[0] * step


def load_arrays(npz: str | Path, dimensions: int, optional: tuple[str, ...] = ()) -> dict[str, Tensor]:
    """x_train, y_train, x_test, y_test and those of the optional arrays that the file contains; all are checked.

    dimensions: how many an item has.
    """
    path = Path(npz).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist: npz must be a file with {', '.join(_REQUIRED)}")
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in (*_REQUIRED, *optional) if name in archive}
    except Exception as error:  # a damaged file raises the errors of numpy, zipfile and zlib
        raise ValueError(f"cannot read {path} as an .npz file: {error}") from error
    if missing := [name for name in _REQUIRED if name not in arrays]:
        raise ValueError(f"{path} does not contain {', '.join(missing)}")
    shapes = _expected_shapes(arrays)
    for name, array in arrays.items():
        if array.shape != shapes[name] or array.size == 0:
            raise ValueError(f"{name} of {path} must have the shape {shapes[name]}, got {array.shape}")
        if array.dtype.kind not in ("iu" if name.startswith("y_") else "iuf"):
            raise ValueError(f"{name} of {path} must contain numbers, and labels integers, got {array.dtype}")
        if not np.isfinite(array).all():
            raise ValueError(f"{name} of {path} contains NaN or infinity")
    if arrays["x_train"].ndim != 1 + dimensions:
        raise ValueError(f"items of {path} must have {dimensions} dimensions, got x_train {shapes['x_train']}")
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return tensors | {name: tensors[name].long() for name in ("y_train", "y_test")}


def _expected_shapes(arrays: dict[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    """Items have one shape, that of x_train; training and test arrays have one item for each label."""
    item, train, test = arrays["x_train"].shape[1:], arrays["y_train"].size, arrays["y_test"].size
    shapes = {"y_train": (train,), "y_test": (test,), "step": item[:1]}
    shapes |= dict.fromkeys(("x_train", "x_train_degraded"), (train, *item))
    shapes |= dict.fromkeys(("x_test", "x_test_degraded"), (test, *item))
    views = len(arrays.get("views_train", ()))
    return shapes | {"views_train": (views, train, *item)}


def _standardize(features: Tensor, reference: Tensor) -> Tensor:
    """(x − mean)/std with the statistics of the reference; a constant feature is centred, but not divided."""
    std, mean = torch.std_mean(reference, dim=0, correction=0)
    constant = std <= 1e-6 * reference.abs().amax(dim=0)  # what is left is rounding
    return (features - mean) / std.masked_fill(constant, 1.0)
