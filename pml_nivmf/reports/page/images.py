"""Test images from the lowest to the highest norm, and what some of them retrieved."""

import numpy as np

from ..figures.pixels import short
from ..html import Markup, image_uri, join, tag
from ..run_folders import Arrays, Found, Group, Run
from .section import Section

_OPEN = 4  # groups that are shown at once; the others open by a click


def images(found: Found) -> Section | None:
    """None where no run left pictures."""
    groups = [g for g in found.groups if g.first.pictures is not None and g.first.items is not None]
    if not groups:
        return None
    note = "One seed of each. Below an image stands its norm ‖z‖: low is uncertain, high is certain."
    return Section("Images", join(tag("p", note), [_of_group(g, i < _OPEN) for i, g in enumerate(groups)]))


def _of_group(group: Group, is_open: bool) -> Markup:
    run = group.first
    parts = [
        tag("h4", "From the lowest to the highest norm"),
        _strip(run, "lowest", "the lowest norms of the test set"),
        _strip(run, "highest", "the highest norms of the test set"),
        tag("h4", "Within a class, from its lowest to its highest norm"),
        _classes(run),
        tag("h4", "Retrieved"),
        _sheet(run),
    ]
    title = tag("summary", tag("h3", f"{group.name}, seed {run.seed}"))
    return tag("details", title, parts, open=is_open)


def degraded_examples(pictures: Arrays) -> Markup:
    """One image at every kind and strength, a row a kind."""
    if "degraded" not in pictures:
        return join()
    rows = []
    for kind, row in zip(pictures["degraded_kinds"], pictures["degraded"], strict=True):
        shown = [
            _thumbnail(pixels, f"a test image, {kind} at {100 * strength:.0f}%", f"{100 * strength:.0f}%")
            for pixels, strength in zip(row, pictures["degraded_strengths"], strict=True)
        ]
        rows.append(tag("div", tag("span", str(kind), class_="row-name"), shown, class_="strip"))
    caption = "What these strengths look like, on one test image."
    return tag("figure", rows, tag("figcaption", caption), class_="examples")


def _strip(run: Run, key: str, label: str) -> Markup:
    pictures, _ = _left(run)
    shown = [_item(run, int(index)) for index in pictures[key]]
    return tag("div", shown, class_="strip", role="group", aria_label=label)


def _classes(run: Run) -> Markup:
    pictures, items = _left(run)
    rows = []
    for row in pictures["by_class"]:
        members = [int(index) for index in row if index >= 0]
        name = f"class {items['labels'][members[0]]}"
        shown = [tag("span", name, class_="row-name"), *(_item(run, index) for index in members)]
        rows.append(tag("div", shown, class_="strip", role="group", aria_label=name))
    return join(rows)


def _sheet(run: Run) -> Markup:
    """A query a row, the most certain first: ✓ neighbours of its class, ✗ others."""
    pictures, items = _left(run)
    queries = sorted(map(int, pictures["queries"]), key=lambda query: -items["norm"][query])
    rows = [_answers(run, query) for query in queries]
    note = (
        "Queries of which the model is most and least certain, each kind right and wrong; then the nearest neighbours "
        "with their similarity: ✓ of the query's class, ✗ of another."
    )
    return join(tag("p", note), tag("div", rows, class_="sheet"))


def _answers(run: Run, query: int) -> Markup:
    _, items = _left(run)
    label = items["labels"][query]
    shown = [_item(run, query, "query"), tag("span", "→", class_="row-name", aria_hidden="true")]
    for index, similarity in zip(items["neighbours"][query], items["similarity"][query], strict=True):
        right = items["labels"][index] == label
        text = f"{similarity:.2f} {'✓' if right else '✗'}"
        alt = f"neighbour: test image {index} of class {items['labels'][index]}, {'right' if right else 'wrong'}"
        shown.append(_thumbnail(_pixels(run, int(index)), alt, text, "right" if right else "wrong"))
    return tag("div", shown, class_="strip")


def _item(run: Run, index: int, kind: str | None = None) -> Markup:
    _, items = _left(run)
    norm = short(float(items["norm"][index]))
    alt = f"test image {index} of class {items['labels'][index]}, norm {norm}"
    return _thumbnail(_pixels(run, index), alt, norm, kind)


def _thumbnail(pixels: np.ndarray, alt: str, caption: str, kind: str | None = None) -> Markup:
    height, width = pixels.shape[1:]
    image = tag("img", src=image_uri(pixels), alt=alt, title=alt, width=width, height=height, class_=kind)
    return tag("figure", image, tag("figcaption", caption), class_="thumbnail")


def _pixels(run: Run, index: int) -> np.ndarray:
    pictures, _ = _left(run)
    place = int(np.searchsorted(pictures["index"], index))
    return np.asarray(pictures["images"][place])


def _left(run: Run) -> tuple[Arrays, Arrays]:
    assert run.pictures is not None
    assert run.items is not None
    return run.pictures, run.items
