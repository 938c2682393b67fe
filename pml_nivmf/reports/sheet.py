"""A page of identified queries beside the enrolled images that spoke for them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ..files import write_text
from .page import environment
from .view import image_uri

_SIDE = 96  # pixels


def write_sheet(answers: Mapping[str, Any], path: Path) -> Path:
    """answers: `inference.Answer` by the name of the query, which is a path for images."""
    page = environment().get_template("sheet.html.j2").render(answers=answers, picture=_picture)
    write_text(path, page)
    return path


def _picture(name: str) -> str | None:
    """The image as a data URI; None if there is none to read, as with embeddings."""
    try:
        with Image.open(name) as image:
            image.thumbnail((_SIDE, _SIDE))
            return image_uri(np.moveaxis(np.asarray(image.convert("RGB")), -1, 0))
    except OSError:
        return None
