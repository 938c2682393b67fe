"""Checks of the tensors a user hands to a loss: each names the offending row or label and the remedy.

Inside torch.compile the graph asserts what is checked here, with a RuntimeError that names the fault but not the row.
"""

import torch
from torch import Tensor

from ..functional.finite import check_squarable

SHORTEST_PROXY, LONGEST_PROXY = 1e-6, 1e15


def check_embeddings(embeddings: Tensor, embedding_size: int, scale: Tensor | float) -> None:
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
    check_squarable("embeddings", embeddings, scale)


def check_labels(labels: Tensor, num_classes: int) -> None:
    """Integers in [0, num_classes)."""
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"labels must be integers, got {labels.dtype}")
    outside = (labels < 0) | (labels >= num_classes)
    if torch.compiler.is_compiling():
        torch._assert_async(~outside.any(), f"a label is out of range for num_classes={num_classes}")
    elif bool(outside.any()):
        label = int(labels[outside][0])
        raise ValueError(
            f"label {label} is out of range for num_classes={num_classes}: labels must be 0 … {num_classes - 1}"
        )


def check_proxies(proxies: Tensor) -> None:
    """Rows of lengths that float32 can square and divide by: others would make NaN of gradients, without a word."""
    lengths = torch.linalg.vector_norm(proxies.detach(), dim=1)
    if bool((lengths == 0).any()):
        raise ValueError("weight_init_func left a proxy at zero, which has no direction: use a random one")
    shortest, longest = (float(end) for end in torch.aminmax(lengths))
    if not (shortest >= SHORTEST_PROXY and longest <= LONGEST_PROXY):
        raise ValueError(
            f"weight_init_func made proxies of lengths {shortest:.3g} to {longest:.3g}: only directions count, use "
            f"lengths between {SHORTEST_PROXY:g} and {LONGEST_PROXY:g}"
        )
