"""Images of the training classes that training does not see."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.utils.data import Subset

from ..checks import check_count
from .splits import DataSplits, LabelledItems, Source


def hold_out_images(labels: Tensor, share: float, seed: int = 0) -> Tensor:
    """A mask (items,) of `share` of the images of every class, rounded, fixed by `seed`; one of each class stays."""
    if not 0 < share < 1:
        raise ValueError(f"share must be a share of each class's images between 0 and 1, both excluded, got {share!r}")
    check_count("seed", seed, at_least=0)
    generator = torch.Generator().manual_seed(seed)
    held_out = torch.zeros_like(labels, dtype=torch.bool)
    for label in torch.unique(labels):
        members = (labels == label).nonzero().flatten()
        count = min(round(share * len(members)), len(members) - 1)
        held_out[members[torch.randperm(len(members), generator=generator)[:count]]] = True
    if not bool(held_out.any()):
        raise ValueError(f"a share of {share} of each class's images is less than one image: raise it")
    return held_out


def with_closed_set(splits: DataSplits, share: float, seed: int = 0) -> DataSplits:
    """Move `share` of the images of every training class from training to `closed_set`, without augmentation."""
    held_out = hold_out_images(splits.train.labels, share, seed)
    return replace(
        splits,
        train=_kept(splits.train, ~held_out),
        train_plain=_kept(splits.train_plain, ~held_out),
        closed_set=Subset(splits.train_plain, held_out.nonzero().flatten().tolist()),
    )


def _kept(items: LabelledItems, chosen: Tensor) -> LabelledItems:
    """Every class is among the `chosen` (items,), so that labels stay what they are."""
    labels, among_all = (torch.zeros(len(items.items), dtype=kind) for kind in (torch.long, torch.bool))
    labels[items.indices] = items.labels
    among_all[items.indices[chosen]] = True
    return LabelledItems(Source(items.items, labels), among_all, items.transform)
