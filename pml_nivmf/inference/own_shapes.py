r"""Each class's own shape, drawn to the shared one by the number of its images.

In the space of the shared K, images deviate from the mean x̄ of their class by about the same variance σ² along every
axis. The covariance of class c, with deviations r_i of its n_c images, is

    Σ_c = (ν·σ²·I + Σ_i r_i·r_iᵀ)/(ν + n_c − 1),

where the shared shape counts like ν images. A Gaussian with Σ_c instead of σ²·I changes log p(x | c) by t_c(x)/σ²,

    t_c(x) = ½·{g·Σ_j s_j²/(s_j² + νσ²)·⟨v_j, x − x̄⟩² − (g − 1)·‖x − x̄‖² − σ²·log det(Σ_c/σ²)},

with the eigenvectors v_j and eigenvalues s_j² of Σ_i r_i·r_iᵀ, at most n_c of them, and g = (ν + n_c − 1)/ν. The
exponents of a gallery are k1 + k2 rather than 1/σ², so its scores change by (k1 + k2)·t_c(x).
"""

from typing import NamedTuple

import torch
from torch import Tensor


class OwnShapes(NamedTuple):
    axes: Tensor  # v_j, (axes, M), of all classes
    squares: Tensor  # s_j², (axes,)
    classes: Tensor  # (axes,)
    means: Tensor  # x̄, (classes, M)
    degrees: Tensor  # n_c − 1, (classes,)
    variance: Tensor  # σ², a scalar


def pooled_variance(images: Tensor, classes: Tensor) -> Tensor:
    """σ² of directions (images, M), a scalar."""
    _, residuals, degrees = deviations(images, classes)
    return (residuals.square().mean(1).sum() / degrees.sum().clamp_min(1)).clamp_min(1e-12)


def own_shapes(images: Tensor, classes: Tensor, class_count: int, variance: Tensor) -> OwnShapes:
    """Of directions (images, M) with their classes (images,)."""
    means, residuals, degrees = deviations(images, classes, class_count)
    order, counts = torch.argsort(classes, stable=True), torch.bincount(classes)
    firsts = counts.cumsum(0) - counts
    parts = [(images[:0], images.new_zeros(0), classes[:0])]
    for count in torch.unique(counts[counts > 1]).tolist():  # classes of one size at a time
        same = (counts == count).nonzero()
        axes, squares = _principal_axes(residuals[order[firsts[same] + torch.arange(count)]])
        real = squares > 1e-6 * squares.amax(1, keepdim=True)  # n_c images deviate along n_c − 1 axes
        parts.append((axes[real], squares[real], same.expand_as(squares)[real]))
    axes, squares, owners = map(torch.cat, zip(*parts, strict=True))
    return OwnShapes(axes, squares, owners, means, degrees, variance)


def own_terms(queries: Tensor, own: OwnShapes, shared_images: Tensor | float) -> Tensor:
    """t_c(x), (queries, classes), of directions (queries, M). shared_images: ν."""
    growth = own.degrees / shared_images + 1
    ratios = own.squares / (shared_images * own.variance)
    projections = queries @ own.axes.T - (own.means[own.classes] * own.axes).sum(1)
    explained = queries.new_zeros(len(own.means), len(queries))
    explained = explained.index_add(0, own.classes, (projections.square() * (ratios / (1 + ratios))).T).T
    log_det = queries.new_zeros(len(own.means)).index_add(0, own.classes, ratios.log1p())
    log_det = log_det - queries.shape[1] * growth.log()
    distances = 1 - 2 * queries @ own.means.T + own.means.square().sum(1)
    return 0.5 * (growth * explained - (growth - 1) * distances - own.variance * log_det)


def deviations(images: Tensor, classes: Tensor, class_count: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Means (classes, M), deviations from them (images, M), and n_c − 1, (classes,), at least `class_count` classes."""
    counts = torch.bincount(classes, minlength=class_count).to(images.dtype)
    sums = images.new_zeros(len(counts), images.shape[1]).index_add(0, classes, images)
    means = sums / counts.clamp_min(1).unsqueeze(1)
    return means, images - means[classes], (counts - 1).clamp_min(0)


def _principal_axes(residuals: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvectors (classes, axes, M) and eigenvalues (classes, axes) of Σ_i r_i·r_iᵀ, from (classes, images, M)."""
    if residuals.shape[1] > residuals.shape[2]:
        squares, vectors = torch.linalg.eigh(residuals.mT @ residuals)
        return vectors.mT, squares
    squares, vectors = torch.linalg.eigh(residuals @ residuals.mT)  # the same eigenvalues, and a smaller matrix
    return vectors.mT @ residuals / squares.clamp_min(1e-30).sqrt().unsqueeze(2), squares
