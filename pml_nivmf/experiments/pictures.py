"""Which test images to keep small copies of, for people to look at."""

from typing import Any

import numpy as np
import torch

from ..data import DegradedItems, LabelledItems, thumbnail, thumbnails
from .degradation import KINDS, STRENGTHS, HeldItems
from .retrieved import Retrieved

_EXTREMES = 20  # at either end of the norms
_CLASSES, _PER_CLASS = 4, 10
_QUERIES = 2  # of each kind: certain or not, right or wrong


def choose(found: Retrieved) -> dict[str, np.ndarray]:
    """Indices of test items.

    lowest, highest: of the norms, ascending. by_class: a few classes, each from its lowest to its highest norm,
    (classes, items), −1 where a class is smaller. queries: most and least certain, right and wrong.
    """
    norm, labels = found.norm.numpy(), found.labels.numpy()
    order = np.argsort(norm, kind="stable")
    ends = min(_EXTREMES, len(order) // 2)
    classes = np.unique(labels)
    classes = classes[_even(len(classes), _CLASSES)]
    by_class = np.full((len(classes), _PER_CLASS), -1)
    for row, label in zip(by_class, classes, strict=True):
        members = order[labels[order] == label]
        chosen = members[_even(len(members), _PER_CLASS)]
        row[: len(chosen)] = chosen
    return {
        "lowest": order[:ends],
        "highest": order[len(order) - ends :],
        "by_class": by_class,
        "queries": _queries(order, found.correct.numpy(), found.counted.numpy()),
    }


def keep(items: LabelledItems, found: Retrieved) -> dict[str, np.ndarray]:
    """The choice with `index` (n,), the items that occur in it and among the neighbours of its queries, ascending, and
    their `images` (n, 1 or 3, height, width); and one of them degraded, see `degraded`."""
    chosen = choose(found)
    neighbours = found.neighbours.numpy()[chosen["queries"]]
    index = np.unique(np.concatenate([part.ravel() for part in (*chosen.values(), neighbours)]))
    index = index[index >= 0]
    example = int(chosen["highest"][len(chosen["highest"]) // 2])
    return {**chosen, "index": index, "images": thumbnails(items, index.tolist()), **degraded(items, example)}


def degraded(items: LabelledItems, index: int) -> dict[str, Any]:
    """`degraded`: one image at every kind and strength, clean first, (kinds, 1 + strengths, …), and which it is."""
    held = HeldItems(items, torch.tensor([index]))
    rows = [
        [thumbnail(DegradedItems(held, kind, strength)[0][0], items.transform) for strength in (0.0, *STRENGTHS)]
        for kind in KINDS
    ]
    names = {"degraded_kinds": np.array(KINDS), "degraded_strengths": np.array((0.0, *STRENGTHS))}
    return {"degraded": np.array(rows), "degraded_item": np.array(index), **names}


def _queries(order: np.ndarray, correct: np.ndarray, counted: np.ndarray) -> np.ndarray:
    order = order[counted[order]]
    right, wrong = order[correct[order]], order[~correct[order]]
    ends = [part[place] for part in (right, wrong) for place in (slice(-_QUERIES, None), slice(0, _QUERIES))]
    return np.array(list(dict.fromkeys(np.concatenate(ends).tolist())), dtype=int)


def _even(count: int, most: int) -> np.ndarray:
    return np.linspace(0, count - 1, min(count, most)).round().astype(int)
