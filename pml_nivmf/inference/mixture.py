r"""Classes as mixtures of von Mises-Fisher distributions, one component per enrolled image.

All vectors are directions in the space of one shared shape K, x ↦ Kx/‖Kx‖. With the images x_i of class c, n_c of them,
and the direction m_c of their mean,

    p(x | c) = e^{β/n_c}·(1/n_c)·Σ_i C_M(‖ν_i‖)·e^{⟨x, ν_i⟩},      ν_i = k1·x_i + k2·m_c.

Each component is pulled towards its class: natural parameters add because densities multiply. k1 → 0 is the nearest
class mean, k2 = 0 a kernel density. e^{β/n_c} corrects for the smaller cosines with the means of few images. If a query
is itself a vMF, its mean has a length A_M(κ) < 1, so a vague query has smaller exponents (`sharpness`). `own_shapes`
adds what a class's own shape changes.

Large galleries compare a query with the nearest images only, found by faiss, and with all class means.
"""

import math
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..functional.pairing import unit_vectors
from ..functional.vmf import relative_log_normalizer_of_square
from .own_shapes import OwnShapes, own_shapes, own_terms, pooled_variance

_TINY = 1e-30  # instead of the logarithm of zero, for classes whose components all underflow
CHUNK = 2**24  # numbers of a matrix of queries and images, or queries and classes, at a time
_SMALLEST_INDEX = 20_000  # images; comparing all of them is faster below
_CANDIDATES = 128  # images per query
_OWN_SHAPES = 8  # classes per query, the most probable ones, where an index is used


class ShapeAxes(NamedTuple):
    r"""K = U·diag(v_m)^{−a/2}·Uᵀ. Directions are Kx/‖Kx‖ in the coordinates of U."""

    variances: Tensor  # v_m, (M,)
    vectors: Tensor  # U, (M, M), one column per axis

    def stretch(self, rotated: Tensor, exponent: Tensor | float) -> Tensor:
        return unit_vectors(rotated * self.variances ** (-0.5 * exponent))


class Parameters(NamedTuple):
    """What `fit` learns, as numbers or, while it learns, as tensors."""

    image: Tensor | float  # k1
    mean: Tensor | float  # k2
    exponent: Tensor | float  # a, how much of the shape is used
    size_offset: Tensor | float  # β
    shared_images: Tensor | float | None = None  # ν of `own_shapes`; None: classes have the shared shape only


class Fitted(NamedTuple):
    """What a gallery has learned."""

    parameters: Parameters
    typical_norm: float
    norm_power: float
    slope: float  # of logit P(the class is enrolled | the highest score)
    intercept: float
    # Of left-out queries: the probability of the right label, that of the most probable label, the probability that
    # the class is enrolled, and whether the most probable label is right, (4, queries).
    calibration: Tensor

    def known(self, highest_scores: Tensor) -> Tensor:
        """The probability that a query's class is enrolled, if both are as probable beforehand, (queries,)."""
        return torch.sigmoid(self.slope * highest_scores + self.intercept)

    def sharpness(self, raw: Tensor) -> Tensor:
        return sharpness(raw, self.typical_norm, self.norm_power)


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
    image_part = (sums.clamp_min(_TINY).log() + largest).T
    return image_part + mean_scores(queries @ components.means.T, components, sharpness)


def mean_scores(cosines: Tensor, components: Components, sharpness: Tensor) -> Tensor:
    """k2·⟨x, m_c⟩ + β/n_c − log n_c from ⟨x, m_c⟩, (queries, classes); −∞ for classes without images."""
    counts, parameters = components.counts.clamp_min(1), components.parameters
    offsets = parameters.size_offset / counts - counts.log()
    scores = cosines * (parameters.mean * sharpness).unsqueeze(1) + offsets
    return scores.masked_fill(components.counts == 0, -math.inf)


def own_scores(terms: Tensor, parameters: Parameters, sharpness: Tensor) -> Tensor:
    """(k1 + k2)·t_c(x), (queries, classes)."""
    return terms * ((parameters.image + parameters.mean) * sharpness).unsqueeze(1)


def sharpness(raw: Tensor, typical_norm: float, norm_power: float) -> Tensor:
    r"""(‖z‖/ρ)^b, (queries,): b = `norm_power` is 0 where norms say nothing about queries (queries, M)."""
    return (torch.linalg.vector_norm(raw, dim=1) / typical_norm) ** norm_power


def candidate_scores(
    queries: Tensor, components: Components, sharpness: Tensor, cosines: Tensor, rows: Tensor
) -> Tensor:
    r"""`class_scores` from candidates only, (queries, classes). cosines, rows: see `nearest_images`.

    Candidates count exactly. The other images of a class count like its mean image, but not as if they were nearer than
    the last candidate: Σ_i e^{k1·⟨x, x_i⟩ + w_i} ≈ n·e^{k1·⟨x, x̄⟩ + w̄ + ½·k1²·(1 − ‖x̄‖²)/M} to second order.
    """
    dim, lengths, parameters = queries.shape[1], components.lengths, components.parameters
    scale, owners = (parameters.image * sharpness).unsqueeze(1), components.classes[rows.clamp_min(0)]
    exponents = (scale * cosines + components.weights[rows.clamp_min(0)]).masked_fill(rows < 0, -math.inf)
    largest = exponents.amax(1, keepdim=True)
    to_means = queries @ components.means.T
    averages = log_weights(lengths, dim, parameters) + 0.5 * parameters.image**2 * (1 - lengths.square()) / dim
    rest = torch.minimum(to_means * lengths, cosines[:, -1:]).mul_(scale).add_(averages - largest).exp_()
    missing = components.counts.repeat(len(queries), 1).scatter_add_(1, owners, (rows >= 0).float().neg_())
    sums = rest.mul_(missing).scatter_add_(1, owners, (exponents - largest).exp_())
    return sums.clamp_min_(_TINY).log_().add_(largest).add_(mean_scores(to_means, components, sharpness))


def make_index(name: str, images: Tensor) -> Any:
    """A faiss index of directions (images, M) for inner products."""
    import faiss

    index = faiss.index_factory(images.shape[1], name, faiss.METRIC_INNER_PRODUCT)
    index.train(images.numpy())
    index.add(images.numpy())
    return index


def nearest_images(index: Any, queries: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and rows of the nearest images, (queries, candidates) each; row −1 where there are fewer."""
    cosines, rows = index.search(queries.numpy(), min(_CANDIDATES, index.ntotal))
    return torch.as_tensor(cosines), torch.as_tensor(rows)


class GallerySpace:
    """A fitted gallery, ready to answer. `update` maps only images that were added. index_name: see `ClassGallery`."""

    def __init__(self, axes: ShapeAxes, fitted: Fitted, index_name: str):
        self.axes, self.fitted, self.index_name = axes, fitted, index_name
        self.images = torch.empty(0, len(axes.variances))
        self.index: Any = None
        self.own: OwnShapes

    def update(self, raw: Tensor, classes: Tensor, class_count: int) -> None:
        if len(raw) == len(self.images):
            return
        new = self._map(raw[len(self.images) :])
        self.images = torch.cat([self.images, new])
        self.components = make_components(self.images, classes, class_count, self.fitted.parameters)
        self.order = torch.argsort(classes, stable=True)  # images of class c: order[starts[c] : starts[c + 1]]
        self.starts = [0, *torch.bincount(classes).cumsum(0).tolist()]
        self.variance = pooled_variance(self.images, classes)
        if self.index is not None:
            self.index.add(new.numpy())
        elif len(raw) >= _SMALLEST_INDEX and find_spec("faiss") is not None:
            self.index = make_index(self.index_name, self.images)
        if self.index is None and self.fitted.parameters.shared_images is not None:
            self.own = own_shapes(self.images, classes, class_count, self.variance)

    def _map(self, raw: Tensor) -> Tensor:
        return self.axes.stretch(unit_vectors(raw) @ self.axes.vectors, self.fitted.parameters.exponent)

    def scores(self, raw: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """(raw queries, scores (queries, classes), the highest scores without norms (queries,)), in chunks."""
        parameters = self.fitted.parameters
        width = len(self.images) if self.index is None else len(self.components.counts)
        for part in raw.split(max(1, CHUNK // width)):
            queries = self._map(part)
            nearest = () if self.index is None else nearest_images(self.index, queries)
            score = class_scores if self.index is None else candidate_scores
            plain_sharpness, sharpness = torch.ones(len(part)), self.fitted.sharpness(part)
            plain = score(queries, self.components, plain_sharpness, *nearest)
            scores = score(queries, self.components, sharpness, *nearest) if self.fitted.norm_power > 0 else plain
            if parameters.shared_images is not None:
                terms = self._own_terms(queries, plain, parameters.shared_images)
                plain = plain + own_scores(terms, parameters, plain_sharpness)
                scores = scores + own_scores(terms, parameters, sharpness)
            yield part, scores, plain.amax(1)

    def _own_terms(self, queries: Tensor, scores: Tensor, shared_images: Tensor | float) -> Tensor:
        """t_c(x), (queries, classes). With an index, of the classes with the highest scores; others have the lowest."""
        if self.index is None:
            return own_terms(queries, self.own, shared_images)
        best = scores.topk(min(_OWN_SHAPES, scores.shape[1])).indices
        columns, places = torch.unique(best, return_inverse=True)
        rows = torch.cat([self._rows(column) for column in columns.tolist()])
        classes = torch.searchsorted(columns, self.components.classes[rows])
        own = own_shapes(self.images[rows], classes, len(columns), self.variance)
        parts = queries.split(max(1, CHUNK // len(rows)))
        terms = torch.cat([own_terms(part, own, shared_images) for part in parts]).gather(1, places)
        return terms.amin(1, keepdim=True).repeat(1, scores.shape[1]).scatter_(1, best, terms)

    def _rows(self, column: int) -> Tensor:
        """The images of a class."""
        return self.order[self.starts[column] : self.starts[column + 1]]

    def contributions(self, raw: Tensor, columns: Tensor, most: int) -> list[list[tuple[int, float]]]:
        """For each query, images of its class and their shares of the likelihood, the largest first."""
        result = []
        queries = self._map(raw) * (self.fitted.parameters.image * self.fitted.sharpness(raw)).unsqueeze(1)
        for query, column in zip(queries, columns.tolist(), strict=True):
            rows = self._rows(column)
            exponents = self.images[rows] @ query + self.components.weights[rows]
            shares, places = exponents.softmax(0).topk(min(most, len(rows)))
            result.append(list(zip(rows[places].tolist(), shares.tolist(), strict=True)))
        return result
