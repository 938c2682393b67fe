"""HTML that cannot be injected into: whatever is not made by `tag` is escaped."""

import base64
import html
import io
from collections.abc import Iterable

import numpy as np
from PIL import Image

_VOID = {"br", "img", "meta"}


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | None | Iterable["Child"]


def tag(name: str, /, *children: Child, **attributes: str | int | bool | None) -> Markup:
    """An element. Strings among the children are escaped, None is left out, lists are taken apart.

    attributes: `class_` is class, `aria_label` is aria-label; True is an attribute without a value, None and False are
    none at all.
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join(*children)}</{name}>")


def join(*children: Child) -> Markup:
    return Markup("".join(_text(child) for child in children))


def _text(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    return html.escape(child) if isinstance(child, str) else join(*child)


def _attribute(key: str, value: str | int | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{html.escape(str(value))}"'


def image_uri(pixels: np.ndarray) -> str:
    """Bytes (1 or 3, height, width) as a data URI: grey ones as PNG, photographs, which compress badly, as JPEG."""
    grey = pixels.shape[0] == 1
    image = Image.fromarray(pixels[0] if grey else np.moveaxis(pixels, 0, -1))
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True) if grey else image.save(buffer, "JPEG", quality=85)
    kind = "png" if grey else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
