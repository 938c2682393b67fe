"""What every data set becomes: a training, a class-disjoint validation and an unseen test part."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import Dataset

from ..checks import check_count
from .checks import check_share

Transform = Callable[[Any], Tensor]
MINIMUM_CLASSES = 2  # with a single class every neighbour is right: neither a loss nor a metric says anything


class Items(Protocol):
    """Where raw items come from: a tensor, a list, or images read from disk at the moment they are asked for."""

    def __getitem__(self, index: int, /) -> Any: ...

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class Source:
    """Raw items and a label for each; labels may be any integers."""

    items: Items
    labels: Tensor  # (items,)


class LabelledItems(Dataset[tuple[Tensor, int]]):
    """The chosen items of a source, transformed, with their labels renumbered 0 … classes−1 in ascending order.

    `labels` is a 1-D torch.long tensor in the order of the items; reading it loads no item.
    """

    def __init__(self, source: Source, chosen: Tensor, transform: Transform) -> None:
        self.items = source.items
        self.indices = chosen.nonzero().flatten()  # `chosen` is a mask (items,)
        self.labels: Tensor = torch.unique(source.labels[chosen], return_inverse=True)[1]
        self.transform = transform
        # Python numbers: reading one out of a tensor takes longer than many a transform.
        self._rows = list(zip(self.indices.tolist(), self.labels.tolist(), strict=True))

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        item, label = self._rows[index]
        return self.transform(self.items[item]), label


@dataclass(frozen=True)
class DataSplits:
    """The parts of one data set; a training item of `train` and `train_plain` differs in its transform only."""

    train: LabelledItems  # training transforms
    train_plain: LabelledItems  # the same items in the same order with evaluation transforms
    validation: LabelledItems  # classes held out of the training classes, evaluation transforms
    test: LabelledItems  # unseen classes, evaluation transforms
    num_classes: int  # classes in train
    input_shape: tuple[int, ...]  # of one item
    test_degraded: LabelledItems | None = None  # the items of `test` in the same order, seen less well, where given
    closed_set: Dataset[tuple[Tensor, int]] | None = None  # of the classes of `train`, kept out of it, see `closed_set`


def hold_out_classes(
    labels: Tensor, share: float, seed: int, name: str = "validation_share", keep: int = MINIMUM_CLASSES
) -> Tensor:
    """A mask (items,) of the items whose class is held out: `share` of the classes, at least two, fixed by `seed`.

    At least `keep` classes must stay. A share of 0 is refused: early stopping would have nothing to look at but the
    test set.
    """
    check_share(name, share)
    check_count("seed", seed, at_least=0)
    classes = torch.unique(labels)
    count = max(MINIMUM_CLASSES, round(share * len(classes)))
    if len(classes) - count < keep:
        raise ValueError(
            f"{name}={share} of {len(classes)} classes leaves {max(0, len(classes) - count)} to train on: {count} are "
            f"held out (never fewer than {MINIMUM_CLASSES}), {keep} must stay; lower the share or add classes"
        )
    order = torch.randperm(len(classes), generator=torch.Generator().manual_seed(seed))
    return torch.isin(labels, classes[order[:count]])


def make_splits(
    train: Source,
    test: Source,
    held_out: Tensor,
    train_transform: Transform,
    plain_transform: Transform,
    input_shape: tuple[int, ...],
    test_degraded: Source | None = None,
) -> DataSplits:
    """`held_out` marks the training items that go to validation, see `hold_out_classes`.

    test_degraded: the same items as in `test`, degraded, where a data set has them.
    """
    everything = torch.ones_like(test.labels, dtype=torch.bool)
    kept = LabelledItems(train, ~held_out, train_transform)
    return DataSplits(
        train=kept,
        train_plain=LabelledItems(train, ~held_out, plain_transform),
        validation=LabelledItems(train, held_out, plain_transform),
        test=LabelledItems(test, everything, plain_transform),
        num_classes=int(kept.labels.max()) + 1,
        input_shape=input_shape,
        test_degraded=None if test_degraded is None else LabelledItems(test_degraded, everything, plain_transform),
    )
