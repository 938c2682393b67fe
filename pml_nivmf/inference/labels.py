"""Labels of classes: integers or strings, each with one column and one spelling."""

import unicodedata
from collections.abc import Sequence
from numbers import Integral
from typing import Any, TypeAlias

import torch
from torch import Tensor

Label: TypeAlias = int | str


def number_labels(labels: Any, known: Sequence[Label] = ()) -> tuple[list[Label], Tensor]:
    """All labels, `known` ones first, and the place of each of `labels` (items,) among them, (items,)."""
    values = labels.tolist() if hasattr(labels, "tolist") else list(labels)
    spellings = {_common(label): label for label in known}
    for label in dict.fromkeys(values):
        other = spellings.setdefault(_common(label), label)
        if other != label:
            raise ValueError(f"{other!r} and {label!r} are two spellings of one label: choose one")
    columns = {label: column for column, label in enumerate(spellings.values())}
    return list(columns), torch.tensor([columns[label] for label in values], dtype=torch.long)


def _common(label: Label) -> str:
    """What all spellings of a label share."""
    if isinstance(label, bool) or not isinstance(label, str | Integral):
        raise ValueError(f"a label must be an integer or a string, got {label!r}")
    return unicodedata.normalize("NFKC", str(label)).strip().casefold()
