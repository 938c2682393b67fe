"""Which test images a report shows, as small copies: extreme norms, some classes, queries, one degraded image."""

import numpy as np

from .degraded import DegradedItems
from .images import thumbnail
from .splits import LabelledItems

KINDS, STRENGTHS = ("crop", "occlude", "blur", "noise"), (0.25, 0.5, 0.75)
_EXTREMES = 20  # images with the lowest and with the highest norm
_CLASSES, _PER_CLASS = 4, 10
_QUERIES = 2  # of each kind: certain or uncertain, right or wrong


def evenly_spaced(count: int, most: int) -> np.ndarray:
    """At most `most` of the indices 0 … count−1, in even steps."""
    return np.linspace(0, count - 1, min(count, most)).round().astype(int)


def make_pictures(dataset: LabelledItems, items: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The contents of thumbnails.npz, from the arrays of test_items.npz: the indices of `choose`; `images` of the items
    `index`, with the neighbours of chosen queries; one item `degraded`, (kinds, 1 + strengths, …), the clean one first.

    Raises a ValueError if the data are not images.
    """
    chosen = choose(items)
    index = np.unique(np.concatenate([*map(np.ravel, chosen.values()), *items["neighbours"][chosen["queries"]]]))
    index = index[index >= 0]
    images = np.stack([thumbnail(dataset[item][0], dataset.transform) for item in index.tolist()])
    original, strengths = [dataset[chosen["highest"][len(chosen["highest"]) // 2]]], (0.0, *STRENGTHS)
    degraded = [[DegradedItems(original, kind, strength)[0][0] for strength in strengths] for kind in KINDS]
    return {
        **chosen,
        "index": index,
        "images": images,
        "degraded": np.array([[thumbnail(image, dataset.transform) for image in row] for row in degraded]),
        "degraded_kinds": np.array(KINDS),
        "degraded_strengths": np.array(strengths),
    }


def choose(items: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Indices of test items.

    lowest, highest: items with extreme norms, ascending. by_class: some classes, each in ascending order of the norm,
    (classes, items), −1 where a class is smaller. queries: the most and the least certain, right and wrong.
    """
    labels, order = items["labels"], np.argsort(items["norm"], kind="stable")
    extremes, classes = min(_EXTREMES, len(order) // 2), np.unique(labels)
    by_class = []
    for label in classes[evenly_spaced(len(classes), _CLASSES)]:
        members = order[labels[order] == label]
        members = members[evenly_spaced(len(members), _PER_CLASS)]
        by_class.append(np.pad(members, (0, _PER_CLASS - len(members)), constant_values=-1))
    counted = order[items["counted"][order]]
    right = items["correct"][counted]
    ends = [part for group in (counted[right], counted[~right]) for part in (group[-_QUERIES:], group[:_QUERIES])]
    return {
        "lowest": order[:extremes],
        "highest": order[len(order) - extremes :],
        "by_class": np.array(by_class),
        "queries": np.unique(np.concatenate(ends)),
    }
