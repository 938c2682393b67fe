r"""How embeddings fill their space: within classes, between classes, and over the dimensions.

Embeddings are taken as they are: hand over unit vectors where the angle is what counts, as
`ProbabilisticAccuracyCalculator` does for retrieval="cosine".
"""

import math
from typing import Any

import torch
from torch import Tensor

from ..checks import check_option
from .checks import UndefinedMetricError, as_embeddings, as_labels
from .pair_distances import Moments, pair_moments

_ROWS = 4096  # items in a block of a QR decomposition


def cluster_diversity(embeddings: Any, labels: Any, over: str = "pairs") -> float:
    r"""Var ‖z_i − z_j‖ over pairs of the same class: how unlike each other the clusters are in size and shape
    [Kirchhof et al. 2022, supplement]. 0 if all pairs are equally far apart.

    embeddings: (items, size). labels: (items,).
    over: "pairs" pools the pairs of all classes; "classes" is the variance of the classes' mean distances.

    Raises UndefinedMetricError, a ValueError, where no class has two items.
    """
    check_option("over", over, ("pairs", "classes"))
    moments = _within_classes(*_checked(embeddings, labels))
    if over == "pairs":
        return sum(moments, Moments()).variance
    return float(torch.tensor([m.mean for m in moments], dtype=torch.double).var(correction=0))


def intra_inter_ratio(embeddings: Any, labels: Any) -> float:
    r"""π_intra/π_inter, the mean distance of two items of a class over the mean distance of two class means: the
    embedding density of Roth et al. (2020). Low is dense, well separated classes; the mean is over pairs.

    embeddings: (items, size). labels: (items,).

    Raises UndefinedMetricError, a ValueError, where no class has two items, there is one class only, or all class means
    coincide.
    """
    points, labels = _checked(embeddings, labels)
    intra = sum(_within_classes(points, labels), Moments()).mean
    means = torch.stack([members.double().mean(dim=0) for members in _by_class(points, labels)])
    inter = pair_moments(means)
    if inter.count == 0 or inter.mean <= 1e-12 * float(means.norm(dim=1).max()):
        what = "there is one class only" if inter.count == 0 else "all class means coincide"
        raise UndefinedMetricError(f"the distance between classes is undefined or zero: {what}")
    return intra / inter.mean


def feature_diversity(embeddings: Any, reverse: bool = False) -> float:
    r"""KL(U ‖ S) of the uniform distribution U to the singular values S = σ/Σσ of the embeddings: the spectral decay ρ
    of Roth et al. (2020). 0 if every direction is used alike; the fewer directions carry the embeddings, the larger.

    KL(U ‖ S) = −log D − (1/D)·Σ_d log S_d with D = min(items, size) singular values. It is infinite where a direction
    is not used at all.

    embeddings: (items, size), not centred.
    reverse: KL(S ‖ U) = log D + Σ_d S_d·log S_d instead, which is never infinite, at most log D.

    Raises UndefinedMetricError, a ValueError, where all embeddings are zero.
    """
    points = as_embeddings("embeddings", embeddings)
    spectrum = _singular_values(points)
    if float(spectrum.max()) == 0:
        raise UndefinedMetricError("all embeddings are zero: there is no spectrum")
    noise = spectrum.max() * max(points.shape) * torch.finfo(torch.double).eps
    shares = torch.where(spectrum <= noise, 0.0, spectrum)
    shares = shares / shares.sum()
    if reverse:
        return math.log(len(shares)) + float(torch.special.xlogy(shares, shares).sum())
    return -math.log(len(shares)) - float(shares.log().mean())


def _checked(embeddings: Any, labels: Any) -> tuple[Tensor, Tensor]:
    points = as_embeddings("embeddings", embeddings)
    return points, as_labels("labels", labels, len(points)).to(points.device)


def _by_class(points: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """The points of every class, in the order of the sorted labels."""
    _, place, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    return points[place.argsort(stable=True)].split(counts.tolist())


def _within_classes(points: Tensor, labels: Tensor) -> list[Moments]:
    """Distances within every class of two items or more."""
    moments = [pair_moments(members) for members in _by_class(points, labels) if len(members) > 1]
    if not moments:
        raise UndefinedMetricError(f"none of the {len(torch.unique(labels))} classes has two items: there are no pairs")
    return moments


def _singular_values(points: Tensor) -> Tensor:
    """Of a tall matrix by QR of blocks of rows: as precise as an SVD, without its copies of the matrix."""
    triangle = torch.empty(0, points.shape[1], dtype=torch.double, device=points.device)
    for rows in points.split(_ROWS):
        triangle = torch.linalg.qr(torch.cat([triangle, rows.double()]), mode="r").R
    return torch.linalg.svdvals(triangle)
