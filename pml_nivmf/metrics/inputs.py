"""Conversion and checks of what users pass to the metrics."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..checks import NotFiniteError


class UndefinedMetricError(ValueError):
    """The data are valid, but the metric has no value for them, such as an AUROC without wrong items."""


def or_nan(metric: Callable[[Tensor, Tensor], float], first: Tensor, second: Tensor) -> float:
    """The value of the metric; NaN if it is undefined."""
    try:
        return metric(first, second)
    except UndefinedMetricError:
        return math.nan


def as_scores(name: str, values: Any, count: int | None = None) -> Tensor:
    """One finite number for each of `count` items, (items,), at least one; float64 on the CPU."""
    scores = _as_tensor(values).cpu().double()
    if scores.ndim != 1 or len(scores) == 0 or count not in (None, len(scores)):
        raise ValueError(f"{name} must have shape ({count or 'items'},), got {tuple(scores.shape)}")
    _check_rows(name, torch.isfinite(scores), "NaN or infinity")
    return scores


def as_scored(certainty: Any, correct: Any) -> tuple[Tensor, Tensor]:
    """The certainty of items and whether each is right: booleans, or numbers that are 0 or 1; float64, (items,)."""
    scores = as_scores("certainty", certainty)
    right = as_scores("correct", correct, len(scores))
    if not bool(((right == 0) | (right == 1)).all()):
        raise ValueError("correct must be true or false, 1 or 0")
    return scores, right


def as_embeddings(name: str, values: Any) -> Tensor:
    """(items, size), at least one of each, finite; faiss also needs squared norms that are finite in float32."""
    embeddings = _as_tensor(values)
    embeddings = embeddings if embeddings.is_floating_point() else embeddings.double()
    if embeddings.ndim != 2 or 0 in embeddings.shape:
        raise ValueError(f"{name} must have shape (items, size) with at least one item, got {tuple(embeddings.shape)}")
    norms = torch.linalg.vector_norm(embeddings.float(), dim=1)
    _check_rows(name, torch.isfinite(norms.square()), "NaN, infinity or values too large to be squared in float32")
    return embeddings


def as_labels(name: str, values: Any, count: int) -> Tensor:
    """One label for each of `count` items, (items,)."""
    labels = _as_tensor(values)
    if labels.shape != (count,):
        raise ValueError(f"{name} must have shape ({count},), one for each item, got {tuple(labels.shape)}")
    return labels


def _check_rows(name: str, valid: Tensor, problem: str) -> None:
    if not bool(valid.all()):
        raise NotFiniteError(f"{name} must not contain {problem}, found in row {int((~valid).nonzero()[0])}")


def _as_tensor(values: Any) -> Tensor:
    """Python floats become float64. Arrays are copied because torch does not accept reversed or read-only ones."""
    return values.detach() if isinstance(values, Tensor) else torch.from_numpy(np.array(values, order="C"))
