"""Embeddings and labels as the calculator wants them: checked, on its device."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from pytorch_metric_learning.utils.accuracy_calculator import EQUALITY
from torch import Tensor

from .checks import check_embeddings, check_labels


class Items(NamedTuple):
    embeddings: Tensor
    labels: Tensor


def make_items(
    name: str, embeddings: Any, labels: Any, device: torch.device, compare: Callable[[Tensor, Tensor], Tensor]
) -> Items:
    """`compare` is the calculator's label_comparison_fn."""
    if labels is None:
        raise ValueError(f"{name} embeddings came without labels: pass {name}_labels")
    embeddings = torch.as_tensor(embeddings).detach().to(device, torch.float).contiguous()
    items = Items(embeddings, _labels(name, torch.as_tensor(labels).to(device), compare))
    check_embeddings(name, *items)
    return items


def _labels(name: str, labels: Tensor, compare: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    if compare is not EQUALITY:
        return labels.float()  # as PML hands them to a comparison of one's own
    check_labels(name, labels)
    # PML's float32 cannot tell labels above 2**24 apart
    return labels if labels.is_floating_point() else labels.long()
