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
    _, residuals, degrees = _residuals(images, classes, int(classes.max()) + 1)
    return (residuals.square().mean(1).sum() / degrees.sum().clamp_min(1)).clamp_min(1e-12)


def own_shapes(images: Tensor, classes: Tensor, class_count: int, variance: Tensor) -> OwnShapes:
    """Of directions (images, M) with their classes (images,)."""
    means, residuals, degrees = _residuals(images, classes, class_count)
    order = torch.argsort(classes, stable=True)
    parts = [_principal_axes(part) for part in residuals[order].split(torch.bincount(classes).tolist()) if len(part)]
    counts = torch.tensor([len(squares) for _, squares in parts])
    owners = torch.unique(classes).repeat_interleave(counts)
    axes, squares = (torch.cat(values) for values in zip(*parts, strict=True))
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


def _residuals(images: Tensor, classes: Tensor, class_count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Means (classes, M), deviations from them (images, M), and n_c − 1, (classes,)."""
    counts = torch.bincount(classes, minlength=class_count).to(images.dtype)
    sums = images.new_zeros(class_count, images.shape[1]).index_add(0, classes, images)
    means = sums / counts.clamp_min(1).unsqueeze(1)
    return means, images - means[classes], (counts - 1).clamp_min(0)


def _principal_axes(residuals: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvectors (axes, M) and eigenvalues (axes,) of Σ_i r_i·r_iᵀ, from the smaller of two matrices of products."""
    if len(residuals) > residuals.shape[1]:
        squares, vectors = torch.linalg.eigh(residuals.T @ residuals)
        return vectors.T, squares.clamp_min(0)
    squares, vectors = torch.linalg.eigh(residuals @ residuals.T)
    real = squares > 1e-6 * squares[-1]  # images of a class deviate along n_c − 1 axes only
    return (vectors.T @ residuals)[real] / squares[real].sqrt().unsqueeze(1), squares[real]
