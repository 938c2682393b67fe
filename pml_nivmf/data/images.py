"""Photographs on disk, opened at the moment they are asked for."""

from collections.abc import Sequence
from pathlib import Path

from PIL import Image


class ImagePaths:
    """RGB images by path; grey, palette and transparent ones are converted."""

    def __init__(self, paths: Sequence[str | Path]) -> None:
        self.paths = [str(path) for path in paths]

    def __getitem__(self, index: int) -> Image.Image:
        path = self.paths[index]
        try:
            with Image.open(path) as image:
                return image.convert("RGB")
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:  # Pillow's many ways
            raise OSError(
                f"the image {path} cannot be read ({error}): put a whole one in its place and go on, or remove it and "
                "begin anew"
            ) from error

    def __len__(self) -> int:
        return len(self.paths)
