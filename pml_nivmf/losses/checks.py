"""Checks of the tensors a user hands to a loss: each names the offending row or label and the remedy."""

import torch
from torch import Tensor

from ..functional.pairing import at_least_float32


def check_embeddings(embeddings: Tensor, embedding_size: int, scale: float) -> None:
    """(batch, embedding_size), at least one row, floating point, finite, also after multiplication by `scale`."""
    if embeddings.ndim != 2:
        raise ValueError(
            f"embeddings must be a 2D tensor of shape (batch_size, embedding_size), got shape {tuple(embeddings.shape)}"
        )
    if embeddings.shape[1] != embedding_size:
        raise ValueError(f"embeddings have width {embeddings.shape[1]}, this loss was built for {embedding_size}")
    if embeddings.shape[0] == 0:
        raise ValueError("embeddings are empty: a batch needs at least one row")
    if not embeddings.is_floating_point():
        raise ValueError(f"embeddings must be floating point, got {embeddings.dtype}")
    # One reduction that is not finite as soon as any entry is not, or a squared norm overflows.
    norms = scale * torch.linalg.vector_norm(at_least_float32(embeddings.detach()), dim=1)
    if not bool(torch.isfinite(norms * norms).all()):
        _raise_not_finite(embeddings, norms)


def _raise_not_finite(embeddings: Tensor, norms: Tensor) -> None:
    row = int((~torch.isfinite(norms * norms)).nonzero()[0])
    if bool(torch.isfinite(embeddings[row]).all()):
        raise ValueError(f"embeddings: the norm of row {row} is too large to be squared in {norms.dtype}")
    kind = "NaN" if bool(torch.isnan(embeddings[row]).any()) else "infinity"
    raise ValueError(f"embeddings hold {kind}, first in row {row}: look at the learning rate and the model's inputs")


def check_labels(labels: Tensor, num_classes: int) -> None:
    """Integers in [0, num_classes)."""
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"labels must be integers, got {labels.dtype}")
    outside = (labels < 0) | (labels >= num_classes)
    if bool(outside.any()):
        label = int(labels[outside][0])
        raise ValueError(
            f"label {label} is out of range for num_classes={num_classes}: labels must be 0 … {num_classes - 1}"
        )
