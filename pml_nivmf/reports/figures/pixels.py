"""Images as matplotlib wants them."""

import numpy as np
from matplotlib.axes import Axes


def as_pixels(images: np.ndarray) -> np.ndarray:
    """Grey (n, height, width) or colour (n, height, width, 3), floats in [0, 1].

    images: bytes or floats in [0, 1], (n, height, width) or channels first (n, 1 or 3, height, width).
    """
    pixels = np.asarray(images)
    if pixels.ndim == 4 and pixels.shape[1] in (1, 3):
        pixels = pixels[:, 0] if pixels.shape[1] == 1 else np.moveaxis(pixels, 1, -1)
    elif pixels.ndim != 3:
        raise ValueError(f"images must be (n, height, width) or (n, 1 or 3, height, width), got {pixels.shape}")
    pixels = pixels / 255 if pixels.dtype == np.uint8 else pixels.astype(float)
    if pixels.size and not (pixels.min() >= 0 and pixels.max() <= 1):
        raise ValueError(
            f"images must be bytes or floats in [0, 1], got [{pixels.min():.3g}, {pixels.max():.3g}]: undo the "
            "normalisation, image·deviation + mean"
        )
    return pixels


def short(value: float) -> str:
    """Three digits, without exponents where a norm has more: 7.50, 12.3, 2048."""
    return f"{value:.0f}" if 1000 <= abs(value) < 1e6 else f"{value:#.3g}".rstrip(".")


def show(axes: Axes, pixels: np.ndarray) -> None:
    """One image, without ticks and grid; a thin frame, because many images have a white or black border."""
    axes.imshow(pixels, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set(visible=True, color="#999999", linewidth=0.5)
