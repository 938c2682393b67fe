"""Checks of what is handed over: each names the offending value and, where there is one, the remedy."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..checks import NotFiniteError, check_count


class UndefinedMetricError(ValueError):
    """The data are sound, but the metric has no value for them, such as an AUROC where everything is right."""


def as_scores(name: str, values: Any) -> Tensor:
    """One number an item, float64, (items,), at least one and no NaN; infinities are ordered like other numbers.

    On the CPU: two lists may come from different devices, not every device has float64, and sorting some numbers is
    cheap.
    """
    scores = _as_tensor(name, values).cpu().double()
    if scores.ndim != 1 or len(scores) == 0:
        raise ValueError(f"{name} must have shape (items,) with at least one item, got {tuple(scores.shape)}")
    check_no_nan(name, scores)
    return scores


def as_outcomes(name: str, values: Any, count: int) -> Tensor:
    """Whether each of `count` items was right: booleans, or numbers that are 0 or 1; float64, (items,)."""
    outcomes = as_scores(name, values)
    if len(outcomes) != count:
        raise ValueError(f"{name} must have one entry for each of {count} items, got {len(outcomes)}")
    odd = (outcomes != 0) & (outcomes != 1)
    if bool(odd.any()):
        raise ValueError(f"{name} must be true or false, 1 or 0, got {float(outcomes[odd][0])}")
    return outcomes


def as_embeddings(name: str, values: Any) -> Tensor:
    """(items, size), at least one of each, finite, in the floating-point dtype it came in."""
    embeddings = _as_tensor(name, values)
    embeddings = embeddings if embeddings.is_floating_point() else embeddings.double()
    if embeddings.ndim != 2 or 0 in embeddings.shape:
        raise ValueError(f"{name} must have shape (items, size) with at least one item, got {tuple(embeddings.shape)}")
    finite = torch.isfinite(embeddings).all(dim=1)
    if not bool(finite.all()):
        raise ValueError(f"{name} holds NaN or infinity, first in row {int((~finite).nonzero()[0])}")
    return embeddings


def as_labels(name: str, values: Any, count: int) -> Tensor:
    """One label for each of `count` items, (items,)."""
    labels = _as_tensor(name, values)
    if labels.shape != (count,):
        raise ValueError(f"{name} must have one entry for each of {count} items, got shape {tuple(labels.shape)}")
    check_no_nan(name, labels)
    return labels


def check_no_nan(name: str, values: Tensor) -> None:
    """NaN equals nothing, itself included: as a label it would be a class of its own, or none, as it comes."""
    if bool(torch.isnan(values).any()):
        row = int(torch.isnan(values).nonzero()[0, 0])
        raise ValueError(f"{name} holds NaN, first in row {row}: leave such items out")


def _as_tensor(name: str, values: Any) -> Tensor:
    """torch would make float32 of Python's numbers, and ties of what is none."""
    if isinstance(values, Tensor):
        return values.detach()
    array = np.asarray(values, order="C")  # torch takes no reversed array
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} must hold numbers, got {values!r:.80} of dtype {array.dtype}")
    return torch.as_tensor(array if array.flags.writeable else array.copy())


def check_counts(name: str, values: Iterable[int]) -> tuple[int, ...]:
    """Distinct, in increasing order."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ValueError(f"{name} must be a list of integers, got {values!r}")
    return tuple(sorted({check_count(name, value) for value in values}))


def check_names(name: str, values: Iterable[str]) -> tuple[str, ...]:
    if isinstance(values, str):
        raise TypeError(f"{name} must be a list of metrics, got the string {values!r}: write ({values!r},)")
    return tuple(values)


def check_labels(name: str, labels: Tensor) -> None:
    """One label an item, where labels are compared by equality."""
    if labels.ndim != 1:
        raise ValueError(
            f"{name}_labels must have shape (items,), got {tuple(labels.shape)}: choose one label an item, "
            "or pass a label_comparison_fn"
        )
    check_no_nan(f"{name}_labels", labels)


def check_embeddings(name: str, embeddings: Tensor, labels: Tensor) -> None:
    """(items, embedding_size), at least one row, one label each, finite, norms that can be squared in float32."""
    if embeddings.ndim != 2 or embeddings.shape[0] == 0:
        raise ValueError(
            f"{name} embeddings must have shape (items, embedding_size) with at least one item, "
            f"got {tuple(embeddings.shape)}"
        )
    if len(embeddings) != len(labels):
        raise ValueError(
            f"{name} embeddings and labels must have the same length, got {len(embeddings)} and {len(labels)}"
        )
    norms = torch.linalg.vector_norm(embeddings, dim=1)
    if not bool(torch.isfinite(norms * norms).all()):
        _raise_not_finite(name, embeddings, norms)


def _raise_not_finite(name: str, embeddings: Tensor, norms: Tensor) -> None:
    row = int((~torch.isfinite(norms * norms)).nonzero()[0])
    if bool(torch.isfinite(embeddings[row]).all()):
        raise NotFiniteError(f"{name} embeddings: the norm of row {row} is too large to be squared in {norms.dtype}")
    kind = "NaN" if bool(torch.isnan(embeddings[row]).any()) else "infinity"
    raise NotFiniteError(
        f"{name} embeddings hold {kind}, first in row {row}: look at the learning rate, or load an earlier checkpoint"
    )


def check_reference_starts_with_query(
    query: Tensor, query_labels: Tensor, reference: Tensor, reference_labels: Tensor, rows: int = 4096
) -> None:
    """PML's contract for ref_includes_query=True, compared `rows` at a time."""
    count = len(query)
    same = len(reference) >= count and all(
        torch.allclose(first, second)
        for whole, start in ((query, reference), (query_labels, reference_labels))
        for first, second in zip(whole.split(rows), start[:count].split(rows), strict=True)
    )
    if not same:
        raise ValueError(
            f"with ref_includes_query=True the first {count} reference embeddings and labels must be the query's: "
            "put the query split first, or pass ref_includes_query=False"
        )
