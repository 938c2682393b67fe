"""`DataSplits`, the form that every data set takes: training, validation and test parts of different classes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from ..checks import check_count, check_range

Transform = Callable[[Any], Tensor]
MINIMUM_CLASSES = 2  # with a single class every neighbour is correct


@dataclass(frozen=True)
class Source:
    """Raw items and their labels, which may be any integers."""

    items: Any  # a tensor, a list, or another object with __getitem__ and __len__
    labels: Tensor  # (items,)
    class_names: Sequence[str] | None = None  # of the labels 0, 1, …


class LabelledItems(Dataset[tuple[Tensor, int]]):
    """The chosen items of a source, transformed, with their labels renumbered 0 … classes−1 in ascending order.

    `chosen` is a mask (items,). `labels` is a 1-D torch.long tensor; reading it loads no item. `class_names` are the
    names of labels 0, 1, …, or None.
    """

    def __init__(self, source: Source, chosen: Tensor, transform: Transform) -> None:
        self.source, self.items = source, source.items
        self.indices = chosen.nonzero().flatten()
        classes, self.labels = torch.unique(source.labels[chosen], return_inverse=True)
        names = source.class_names
        self.class_names = None if names is None else [names[label] for label in classes.tolist()]
        self.transform = transform
        # Python numbers: reading one from a tensor takes longer than many transforms.
        self._rows = list(zip(self.indices.tolist(), self.labels.tolist(), strict=True))
        self.seed: Tensor | None = None  # if set, random transforms depend on it and on the index only

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        item, label = self._rows[index]
        if self.seed is None:
            return self.transform(self.items[item]), label
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(int(self.seed) // 2 + index)
            return self.transform(self.items[item]), label


@dataclass(frozen=True)
class DataSplits:
    """The parts of one data set."""

    train: LabelledItems  # training transforms
    train_plain: LabelledItems  # the items of `train` in the same order, with evaluation transforms
    validation: LabelledItems  # classes held out of the training classes, evaluation transforms; may be empty
    test: LabelledItems  # unseen classes, evaluation transforms
    num_classes: int  # in `train`
    input_shape: tuple[int, ...]  # of one item
    train_degraded: Any = None  # degraded versions of the items of `train_plain`, in the same order, or None
    test_degraded: LabelledItems | None = None  # degraded versions of the items of `test`, in the same order
    degraded_as: str = "as given"  # what they are, in words
    test_images: LabelledItems | None = None  # the images of `test`, where its items are maps of them


def hold_out_classes(
    labels: Tensor, share: float, seed: int, name: str = "validation_share", keep: int = MINIMUM_CLASSES
) -> Tensor:
    """A mask (items,) of the items whose class is held out: `share` of the classes, at least two, fixed by `seed`.

    At least `keep` classes must remain. A share of 0 holds out nothing. Errors name the argument `name`.
    """
    check_count("seed", seed, at_least=0)
    if check_range(name, share, at_most=1) == 0:
        return torch.zeros_like(labels, dtype=torch.bool)
    classes = torch.unique(labels)
    count = max(MINIMUM_CLASSES, round(share * len(classes)))
    if len(classes) - count < keep:
        least = MINIMUM_CLASSES + keep
        remedy = "lower it" if len(classes) >= least else f"at least {least} classes are needed"
        problem = f"{name}={share} holds out {count} of {len(classes)} classes, but {keep} must remain"
        raise ValueError(f"{problem}: {remedy}")
    order = torch.randperm(len(classes), generator=torch.Generator().manual_seed(seed))
    return torch.isin(labels, classes[order[:count]])


def make_splits(
    train: Source,
    test: Source,
    held_out: Tensor,
    train_transform: Transform,
    plain_transform: Transform,
    input_shape: tuple[int, ...],
    train_degraded: Source | None = None,
    test_degraded: Source | None = None,
) -> DataSplits:
    """`held_out` is a mask of the training items that go to validation, see `hold_out_classes`."""
    everything = torch.ones_like(test.labels, dtype=torch.bool)
    train_items = LabelledItems(train, ~held_out, train_transform)
    return DataSplits(
        train=train_items,
        train_plain=LabelledItems(train, ~held_out, plain_transform),
        validation=LabelledItems(train, held_out, plain_transform),
        test=LabelledItems(test, everything, plain_transform),
        num_classes=int(train_items.labels.max()) + 1,
        input_shape=input_shape,
        train_degraded=None if train_degraded is None else LabelledItems(train_degraded, ~held_out, plain_transform),
        test_degraded=None if test_degraded is None else LabelledItems(test_degraded, everything, plain_transform),
    )


def class_split(splits: DataSplits, number: int | None, count: int) -> DataSplits:
    """Hold out split `number` (0, 1, …) of `count` splits of the training classes, which are always the same."""
    if number not in range(check_count("splits", count, at_least=2)):
        raise ValueError(f"split must be 0 … {count - 1}, because splits is {count}; got {number}")
    if splits.num_classes < MINIMUM_CLASSES * count or len(splits.validation):
        classes = f"{splits.num_classes} training classes and {len(splits.validation)} validation items"
        raise ValueError(f"cannot make {count} splits of {classes}: use fewer splits, and no validation_share")
    order = torch.randperm(splits.num_classes, generator=torch.Generator().manual_seed(0))
    held_out = torch.isin(splits.train.labels, order[number::count])
    parts: dict[str, Any] = {name: getattr(splits, name) for name in ("train", "train_plain", "train_degraded")}
    train: dict[str, Any] = {name: part and _subset(part, ~held_out) for name, part in parts.items()}
    validation, remaining = _subset(splits.train_plain, held_out), int(train["train"].labels.max()) + 1
    return replace(splits, **train, validation=validation, num_classes=remaining)


def _subset(items: LabelledItems, mask: Tensor) -> LabelledItems:
    """The items where `mask` (items,) is True, renumbered; labels do not change if every class is among them."""
    chosen = torch.zeros(len(items.items), dtype=torch.bool)
    chosen[items.indices[mask]] = True
    return LabelledItems(items.source, chosen, items.transform)
