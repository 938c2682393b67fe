"""Glyphs, the embedded data set: characters in matplotlib's text fonts, rendered in seconds, without a download."""

from pathlib import Path

import numpy as np
import PIL
import torch

from ..checks import check_count
from .cache import Arrays, cached_arrays, user_cache_dir
from .checks import check_not_negative
from .glyph_fonts import characters, font_files
from .glyph_rendering import render
from .splits import DataSplits, Source, hold_out_classes, make_splits
from .transforms import grey_transforms

RENDERING = 1  # raise it when the same arguments give other images: old caches are then passed over
SMALLEST = 8  # pixels a side


def Glyphs(  # noqa: N802  named like a class in configs
    cache_dir: str | Path | None = None,
    size: int = 32,
    instances: int = 16,
    jitter: float = 1.0,
    shift: int = 2,
    validation_share: float = 0.25,
    seed: int = 0,
) -> DataSplits:
    """369 Latin letters and digits to train and validate, 187 Greek and Cyrillic letters, unseen, to test.

    A class is a character; its `instances` go round the 16 fonts, each under an affine map that `seed` fixes and
    `jitter` scales (0: none). Training images are shifted by up to `shift` pixels besides. Images are float32 in
    [0, 1], (1, size, size), ink bright. They are kept in `cache_dir` (default: $XDG_CACHE_HOME or ~/.cache).
    """
    arrays = _images(cache_dir, size, instances, jitter, seed)
    train, test = _source(arrays["train"]), _source(arrays["test"])
    train_transform, plain_transform = grey_transforms(shift)
    return make_splits(
        train=train,
        test=test,
        held_out=hold_out_classes(train.labels, validation_share, seed),
        train_transform=train_transform,
        plain_transform=plain_transform,
        input_shape=(1, size, size),
    )


def _source(images: np.ndarray) -> Source:
    """(classes, instances, size, size) -> items (1, size, size), class after class."""
    classes, instances, *shape = images.shape
    items = torch.from_numpy(images).reshape(classes * instances, 1, *shape)
    return Source(items, torch.arange(classes).repeat_interleave(instances))


def _images(cache_dir: str | Path | None, size: int, instances: int, jitter: float, seed: int) -> Arrays:
    check_count("size", size, at_least=SMALLEST)
    check_count("instances", instances, at_least=2)  # a class of one has nothing to be retrieved
    jitter = check_not_negative("jitter", jitter)
    check_count("seed", seed, at_least=0)
    folder = user_cache_dir() if cache_dir is None else Path(cache_dir).expanduser()
    # Pillow brings FreeType along: another version may draw other pixels.
    key = f"glyphs-v{RENDERING}-size{size}-instances{instances}-jitter{jitter!r}-seed{seed}-pillow{PIL.__version__}"
    return cached_arrays(folder / f"{key}.npz", ("train", "test"), lambda: _render(size, instances, jitter, seed))


def _render(size: int, instances: int, jitter: float, seed: int) -> Arrays:
    files = font_files()
    parts = zip(("train", "test"), characters(), strict=True)
    return {part: render(chars, files, size, instances, jitter, seed) for part, chars in parts}
