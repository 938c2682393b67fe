"""Characters as small grey images: each instance in one font, under its own small affine map."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from .glyph_fonts import load_font

OVERSAMPLING = 2  # drawn larger, then averaged: soft edges whatever the map
EM = 0.62  # font size as a share of the image
ROOM = 0.84  # share of the image a glyph may fill before the map; wider ones (Ǆ) are shrunk
ROTATION, SHEAR, SCALE, SHIFT = 0.14, 0.12, 0.1, 0.05  # ± radians, slope, share, share of the image; at jitter 1


def render(
    characters: dict[str, tuple[str, ...]], files: dict[str, Path], size: int, instances: int, jitter: float, seed: int
) -> np.ndarray:
    """Bytes (characters, instances, size, size), ink bright; instances go round the fonts that draw the character."""
    fonts = {name: load_font(file, round(EM * size * OVERSAMPLING)) for name, file in files.items()}
    images = np.zeros((len(characters), instances, size, size), dtype=np.uint8)
    for row, (character, names) in zip(images, characters.items(), strict=True):
        stamps = {name: _stamp(character, fonts[name]) for name in names}
        for i in range(instances):
            # Seeded by what is drawn, not by its place in the list: other characters never change this one.
            chance = np.random.default_rng([seed, ord(character), i]).uniform(-1, 1, size=5)
            row[i] = np.asarray(_draw(stamps[names[i % len(names)]], size, jitter * chance))
    return images


def _stamp(character: str, font: ImageFont.FreeTypeFont) -> Image.Image:
    """The glyph on the smallest page that holds it, with a dark rim."""
    left, top, right, bottom = font.getbbox(character)
    page = Image.new("L", (int(right - left) + 2, int(bottom - top) + 2))
    ImageDraw.Draw(page).text((1 - left, 1 - top), character, fill=255, font=font)
    return page


def _draw(stamp: Image.Image, size: int, chance: np.ndarray) -> Image.Image:
    """The stamp in the middle of the image, rotated, sheared, scaled and shifted by `chance` (5 numbers)."""
    side = size * OVERSAMPLING
    angle, shear, grow = ROTATION * chance[0], SHEAR * chance[1], 1 + SCALE * chance[2]
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    fit = min(1.0, ROOM * side / max(stamp.size))
    forward = grow * fit * rotation @ np.array([[1.0, shear], [0.0, 1.0]])  # stamp -> image, about the centres
    back = np.linalg.inv(forward)
    target = side / 2 + side * SHIFT * chance[3:]
    offset = np.array(stamp.size) / 2 - back @ target
    data = (back[0, 0], back[0, 1], offset[0], back[1, 0], back[1, 1], offset[1])
    page = stamp.transform((side, side), Image.Transform.AFFINE, data, resample=Image.Resampling.BILINEAR)
    return page.reduce(OVERSAMPLING)
