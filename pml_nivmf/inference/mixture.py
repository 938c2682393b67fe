r"""Classes as mixtures of von Mises-Fisher distributions, one component per enrolled image.

All vectors are directions in the space of one shared shape K, x ↦ Kx/‖Kx‖. With the images x_i of class c, n_c of them,
and the direction m_c of their mean,

    p(x | c) = e^{β/n_c}·(1/n_c)·Σ_i C_M(‖ν_i‖)·e^{⟨x, ν_i⟩},      ν_i = k1·x_i + k2·m_c.

Each component is pulled towards its class: natural parameters add because densities multiply. k1 → 0 is the nearest
class mean, k2 = 0 a kernel density. e^{β/n_c} corrects for the smaller cosines with the means of few images. If a query
is itself a vMF, its mean has a length A_M(κ) < 1, so a vague query has smaller exponents (`sharpness`).
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..functional.pairing import unit_vectors
from ..functional.vmf import relative_log_normalizer_of_square

TINY = 1e-30  # instead of the logarithm of zero, for classes whose components all underflow
CHUNK = 2**24  # numbers of a matrix of queries and images, or queries and classes, at a time


class ShapeAxes(NamedTuple):
    r"""K = U·diag(v_m)^{−a/2}·Uᵀ. Directions are Kx/‖Kx‖ in the coordinates of U."""

    variances: Tensor  # v_m, (M,)
    vectors: Tensor  # U, (M, M), one column per axis

    def rotate(self, directions: Tensor) -> Tensor:
        return directions @ self.vectors

    def stretch(self, rotated: Tensor, exponent: Tensor | float) -> Tensor:
        return unit_vectors(rotated * self.variances ** (-0.5 * exponent))


class Parameters(NamedTuple):
    """What `fit` learns, as numbers or, while it learns, as tensors."""

    image: Tensor | float  # k1
    mean: Tensor | float  # k2
    exponent: Tensor | float  # a, how much of the shape is used
    size_offset: Tensor | float  # β


class Components(NamedTuple):
    """The mixtures of all classes."""

    images: Tensor  # x_i, (images, M)
    classes: Tensor  # (images,), each class's number
    means: Tensor  # m_c, (classes, M)
    lengths: Tensor  # of the means before they are unit vectors, (classes,)
    weights: Tensor  # log C_M(‖ν_i‖) − log C_M(0), (images,)
    counts: Tensor  # n_c, (classes,)
    parameters: Parameters


def make_components(images: Tensor, classes: Tensor, class_count: int, parameters: Parameters) -> Components:
    counts = torch.bincount(classes, minlength=class_count).to(images.dtype)
    sums = images.new_zeros(class_count, images.shape[1]).index_add(0, classes, images)
    means, lengths = unit_vectors(sums), torch.linalg.vector_norm(sums.detach(), dim=1) / counts.clamp_min(1)
    weights = log_weights((images * means[classes]).sum(1), images.shape[1], parameters)
    return Components(images, classes, means, lengths, weights, counts, parameters)


def log_weights(cosines: Tensor, dim: int, parameters: Parameters) -> Tensor:
    """log C_M(‖k1·x + k2·m‖) − log C_M(0) from ⟨x, m⟩."""
    k1, k2 = parameters.image, parameters.mean
    return relative_log_normalizer_of_square(k1 * k1 + k2 * k2 + 2 * k1 * k2 * cosines, dim)


def class_scores(queries: Tensor, components: Components, sharpness: Tensor) -> Tensor:
    """log p(x | c) up to a constant, (queries, classes), from directions (queries, M); −∞ for classes without images.

    sharpness: the factor of each query's exponents, (queries,).
    """
    scaled = queries * (components.parameters.image * sharpness).unsqueeze(1)
    exponents = components.images @ scaled.T + components.weights.unsqueeze(1)  # (images, queries)
    largest = exponents.detach().amax(0)
    sums = exponents.new_zeros(len(components.counts), len(queries))
    sums = sums.index_add(0, components.classes, (exponents - largest).exp())
    image_part = (sums.clamp_min(TINY).log() + largest).T
    return image_part + mean_scores(queries @ components.means.T, components, sharpness)


def mean_scores(cosines: Tensor, components: Components, sharpness: Tensor) -> Tensor:
    """k2·⟨x, m_c⟩ + β/n_c − log n_c from ⟨x, m_c⟩, (queries, classes); −∞ for classes without images."""
    counts, parameters = components.counts.clamp_min(1), components.parameters
    offsets = parameters.size_offset / counts - counts.log()
    scores = cosines * (parameters.mean * sharpness).unsqueeze(1) + offsets
    return scores.masked_fill(components.counts == 0, -math.inf)


def sharpness(raw: Tensor, typical_norm: float, norm_power: float) -> Tensor:
    r"""(‖z‖/ρ)^b, (queries,): b = `norm_power` is 0 where norms say nothing about queries (queries, M)."""
    return (torch.linalg.vector_norm(raw, dim=1) / typical_norm) ** norm_power
