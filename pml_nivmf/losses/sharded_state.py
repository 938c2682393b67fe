"""The state of a sharded loss, and of its optimizer, as if it had never been sharded: for any other number of ranks."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .base import ProxyLoss
from .collectives import broadcast_rows


def whole_state_dict(loss: ProxyLoss, optimizer: torch.optim.Optimizer | None = None) -> dict[str, Any]:
    """{"loss": …, "optimizer": …} with the rows of all ranks, in main memory; every rank has to ask, and gets it.

    "loss" is the state_dict of the same loss without shards, "optimizer" that of an optimizer of the loss's parameters.
    Save them from one rank.
    """
    names = set(loss.sharded_names())

    def join(rows: Tensor) -> Tensor:
        return torch.cat([part.cpu() for part in broadcast_rows(rows, loss.shard.lengths)])

    state = {k: join(v) if k in names else _copy(v) for k, v in loss.state_dict().items()}
    if optimizer is None:
        return {"loss": state}
    return {"loss": state, "optimizer": _changed(optimizer.state_dict(), loss, optimizer, loss.shard.count, join)}


def load_whole_state_dict(
    loss: ProxyLoss, state: dict[str, Any], optimizer: torch.optim.Optimizer | None = None
) -> None:
    """Take this rank's rows of what `whole_state_dict` gave, whatever the number of ranks was then."""
    names, own_rows = set(loss.sharded_names()), loss.shard.rows_of
    loss.load_state_dict({k: own_rows(v) if k in names else v for k, v in state["loss"].items()})
    if optimizer is not None:
        optimizer.load_state_dict(_changed(state["optimizer"], loss, optimizer, loss.num_classes, own_rows))


def _changed(
    state: dict[str, Any],
    loss: ProxyLoss,
    optimizer: torch.optim.Optimizer,
    length: int,
    change: Callable[[Tensor], Tensor],
) -> dict[str, Any]:
    """An optimizer's state with `change` made to what it keeps for each class: moments, of `length` rows."""
    rows = {id(row) for row in loss._class_parameters()} if loss.sharded else set()
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def of_parameter(number: int, kept: dict[str, Any]) -> dict[str, Any]:
        by_class = id(parameters[number]) in rows
        return {k: change(v) if by_class and _has_rows(v, length) else _copy(v) for k, v in kept.items()}

    return {**state, "state": {number: of_parameter(number, kept) for number, kept in state["state"].items()}}


def _copy(value: Any) -> Any:
    return value.detach().cpu().clone() if isinstance(value, Tensor) else value


def _has_rows(value: Any, length: int) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0 and len(value) == length
