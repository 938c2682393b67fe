"""Photographs on disk, opened at the moment they are asked for."""

from collections.abc import Sequence
from pathlib import Path

from PIL import Image


class ImagePaths:
    """RGB images by path; grey, palette and transparent ones are converted."""

    def __init__(self, paths: Sequence[str | Path]) -> None:
        self.paths = [str(path) for path in paths]

    def __getitem__(self, index: int) -> Image.Image:
        with Image.open(self.paths[index]) as image:
            return image.convert("RGB")

    def __len__(self) -> int:
        return len(self.paths)
