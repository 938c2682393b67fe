"""Is the model less certain of test items that were made worse?"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data import DegradedItems, LabelledItems
from ..metrics import share_less_certain, spearman_correlation
from ..metrics.scores import NORM
from ..metrics.set_metrics import or_nan
from .retrieved import Gallery, Retrieved

KINDS = ("crop", "occlude", "blur", "noise")
STRENGTHS = (0.25, 0.5, 0.75)
_MOST_IMAGES = 128
GIVEN = "as given"  # the kind of a data set's own degraded items

Embed = Callable[[Tensor], Tensor]
"""Inputs (n, …) -> raw embeddings (n, M)."""


class HeldItems:
    """Some images of a data set, loaded once to be degraded often."""

    def __init__(self, items: LabelledItems, indices: Tensor) -> None:
        self.indices = indices
        self.labels: Tensor = items.labels[indices]
        self.images = torch.stack([items[index][0] for index in indices.tolist()])

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.images[index], int(self.labels[index])

    def __len__(self) -> int:
        return len(self.indices)


def evenly_spread(count: int, most: int) -> Tensor:
    """At most `most` of the indices 0 … count−1, at even steps."""
    return torch.linspace(0, count - 1, min(count, most)).round().long()


def of_images(items: LabelledItems, gallery: Gallery, embed: Embed) -> dict[str, Any]:
    """Every kind at every strength, on a bounded number of test images."""
    held = HeldItems(items, evenly_spread(len(items), _MOST_IMAGES))
    own = held.indices.to(gallery.labels.device)
    clean = gallery.retrieve(gallery.embeddings[own], own, k=1)
    kinds = {}
    for kind in KINDS:
        worse = []
        for strength in STRENGTHS:
            degraded = DegradedItems(held, kind, strength)
            images = torch.stack([degraded[index][0] for index in range(len(held))])
            worse.append(gallery.retrieve(embed(images), own, k=1))
        kinds[kind] = compare(clean, worse, STRENGTHS)
    return _result(kinds, clean)


def of_given(embeddings: Tensor, gallery: Gallery) -> dict[str, Any]:
    """All test items against the degraded ones that came with the data, (items, M)."""
    own = torch.arange(len(embeddings), device=embeddings.device)
    clean, worse = (gallery.retrieve(queries, own, k=1) for queries in (gallery.embeddings, embeddings))
    return _result({GIVEN: compare(clean, [worse], (1.0,))}, clean)


def _result(kinds: dict[str, Any], clean: Retrieved) -> dict[str, Any]:
    """With the mean over kinds and strengths of each certainty."""
    overall = {
        name: {
            key: float(np.mean([np.mean(kind[name][key]) for kind in kinds.values()]))
            for key in ("share_less_certain", "spearman")
        }
        for name in clean.scores()
    }
    return {"items": len(clean.labels), "recall_at_1": _recall(clean), "overall": overall, "kinds": kinds}


def compare(clean: Retrieved, worse: list[Retrieved], strengths: tuple[float, ...]) -> dict[str, Any]:
    """Of the same items clean and at every strength: retrieval, and each certainty.

    share_less_certain: of the items, at every strength. spearman: the correlation of strength, 0 for the clean ones,
    and certainty over all items and strengths. relative_median: of the norm over the clean item's.
    """
    result: dict[str, Any] = {"strength": list(strengths), "recall_at_1": [_recall(found) for found in worse]}
    strength = torch.tensor([0.0, *strengths]).repeat_interleave(len(clean.labels))
    for name, before in clean.scores().items():
        after = [found.scores()[name] for found in worse]
        result[name] = {
            "share_less_certain": [share_less_certain(before, value) for value in after],
            "spearman": or_nan(spearman_correlation, strength, torch.cat([before, *after])),
        }
    positive = clean.norm > 0
    ratios = [(found.norm[positive] / clean.norm[positive]).median() for found in worse]
    result[NORM]["relative_median"] = [float(ratio) for ratio in ratios]
    return result


def _recall(found: Retrieved) -> float:
    """NaN where no item has anything to find."""
    return float(found.correct[found.counted].double().mean())
