"""A fitted gallery, ready to answer: its images in the space of K, and the scores of queries.

Large galleries compare a query with the nearest images only, found by faiss, and with all class means.
"""

import math
from collections.abc import Iterator
from importlib.util import find_spec

import torch
from torch import Tensor

from ..functional.pairing import unit_vectors
from .fitting import Fitted
from .mixture import CHUNK, TINY, Components, ShapeAxes, class_scores, log_weights, make_components, mean_scores

_SMALLEST_INDEX = 20_000  # images; comparing all of them is faster below
_CANDIDATES = 128  # images per query


class GallerySpace:
    """Images are mapped once; `update` maps only those that were added. index_name: see `ClassGallery`."""

    def __init__(self, axes: ShapeAxes, fitted: Fitted, index_name: str):
        self.axes, self.fitted, self.index_name = axes, fitted, index_name
        self.images = torch.empty(0, len(axes.variances))
        self.index: ImageIndex | None = None

    def update(self, raw: Tensor, classes: Tensor, class_count: int) -> None:
        if len(raw) == len(self.images):
            return
        new = self._map(raw[len(self.images) :])
        self.images = torch.cat([self.images, new])
        self.components = make_components(self.images, classes, class_count, self.fitted.parameters)
        self.order = torch.argsort(classes, stable=True)  # images of class c: order[starts[c] : starts[c + 1]]
        self.starts = [0, *torch.bincount(classes).cumsum(0).tolist()]
        if self.index is not None:
            self.index.add(new)
        elif len(raw) >= _SMALLEST_INDEX and find_spec("faiss") is not None:
            self.index = ImageIndex(self.index_name, self.images)

    def _map(self, raw: Tensor) -> Tensor:
        return self.axes.stretch(self.axes.rotate(unit_vectors(raw)), self.fitted.parameters.exponent)

    def scores(self, raw: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """(raw queries, scores (queries, classes)), in chunks."""
        width = len(self.images) if self.index is None else len(self.components.counts)
        for part in raw.split(max(1, CHUNK // width)):
            queries, sharp = self._map(part), self.fitted.sharpness(part)
            if self.index is None:
                yield part, class_scores(queries, self.components, sharp)
            else:
                yield part, candidate_scores(queries, self.components, sharp, *self.index.search(queries))

    def contributions(self, raw: Tensor, columns: Tensor, most: int) -> list[list[tuple[int, float]]]:
        """For each query, images of its class and their shares of the likelihood, the largest first."""
        found = []
        queries = self._map(raw) * (self.fitted.parameters.image * self.fitted.sharpness(raw)).unsqueeze(1)
        for query, column in zip(queries, columns.tolist(), strict=True):
            rows = self.order[self.starts[column] : self.starts[column + 1]]
            exponents = self.images[rows] @ query + self.components.weights[rows]
            shares, places = exponents.softmax(0).topk(min(most, len(rows)))
            found.append(list(zip(rows[places].tolist(), shares.tolist(), strict=True)))
        return found


class ImageIndex:
    """A faiss index of directions (images, M) for inner products."""

    def __init__(self, name: str, images: Tensor):
        import faiss

        self.index = faiss.index_factory(images.shape[1], name, faiss.METRIC_INNER_PRODUCT)
        self.index.train(images.numpy())
        self.add(images)

    def add(self, images: Tensor) -> None:
        self.index.add(images.numpy())

    def search(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and rows of the nearest images, (queries, candidates) each; row −1 where there are fewer."""
        cosines, rows = self.index.search(queries.numpy(), min(_CANDIDATES, self.index.ntotal))
        return torch.as_tensor(cosines), torch.as_tensor(rows)


def candidate_scores(
    queries: Tensor, components: Components, sharpness: Tensor, cosines: Tensor, rows: Tensor
) -> Tensor:
    r"""`class_scores` from candidates only, (queries, classes). cosines, rows: see `ImageIndex.search`.

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
    return sums.clamp_min_(TINY).log_().add_(largest).add_(mean_scores(to_means, components, sharpness))
