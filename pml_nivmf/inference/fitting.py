r"""What a gallery learns from its own images, each classified by the others.

The images of every class are divided into ten folds. Those of a fold are queries to the gallery without the fold, and K
is computed without it: with few images, a K that has seen a query's own deviation looks far better than it is. k1, k2,
a and β minimise the mean negative log-posterior of the labels; then k1, k2, β and ν do, with each class's own shape.
With up to ten images per class this leaves one out.
"""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ..functional.pairing import unit_vectors
from .mixture import CHUNK, Fitted, Parameters, ShapeAxes, class_scores, make_components, own_scores, sharpness
from .own_shapes import OwnShapes, own_shapes, own_terms, pooled_variance

_FOLDS = 10
_MOST_QUERIES, _MOST_IMAGES = 1024, 5000  # to learn from; of larger galleries, only some classes
_NORM_POWERS = (1.0, 0.5)  # to try, see `sharpness`
# log k1, log k2, a and β: penalties draw a to ½ and keep the others finite where labels are easy to tell.
_USUAL, _STRENGTH = torch.tensor([math.log(8), math.log(8), 0.5, 0]), torch.tensor([1.0, 1.0, 30.0, 1.0])
_USUAL_SHARED_IMAGES = 300.0  # ν

AxesOf = Callable[[Tensor], ShapeAxes]  # of some rows of the embeddings


class Fold:
    """Queries and the gallery that classifies them; K is computed from `shape`, without the queries. All are rows."""

    def __init__(self, queries: Tensor, gallery: Tensor, shape: Tensor, raw: Tensor, classes: Tensor, axes_of: AxesOf):
        self.raw, self.labels, self.axes = raw[queries], classes[queries], axes_of(shape)
        self.classes, self.class_count = classes[gallery], int(classes.max()) + 1
        self.own: OwnShapes | None = None  # in the space of the first exponent that needs it
        self.queries, self.gallery = (unit_vectors(raw[rows]) @ self.axes.vectors for rows in (queries, gallery))

    def scores(self, parameters: Parameters, sharp: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """(scores, labels (queries, 1)) in chunks of queries."""
        images, queries = (self.axes.stretch(part, parameters.exponent) for part in (self.gallery, self.queries))
        components = make_components(images, self.classes, self.class_count, parameters)
        shared_images = parameters.shared_images
        if shared_images is not None and self.own is None:
            self.own = own_shapes(images, self.classes, self.class_count, pooled_variance(images, self.classes))
        for rows in torch.arange(len(queries)).split(max(1, CHUNK // len(images))):
            scores = class_scores(queries[rows], components, sharp[rows])
            if shared_images is not None and self.own is not None:
                terms = own_terms(queries[rows], self.own, shared_images)
                scores = scores + own_scores(terms, parameters, sharp[rows])
            yield scores, self.labels[rows, None]

    def log_posteriors(self, parameters: Parameters, sharp: Tensor) -> Tensor:
        """Of the labels, (queries,)."""
        chunks = self.scores(parameters, sharp)
        return torch.cat([scores.log_softmax(1).gather(1, labels)[:, 0] for scores, labels in chunks])


def fit_gallery(raw: Tensor, classes: Tensor, axes_of: AxesOf) -> Fitted:
    counts = torch.bincount(classes)
    order = torch.randperm(len(counts), generator=torch.Generator().manual_seed(0))
    order = order[torch.argsort(counts[order] == 1, stable=True)]  # classes to learn from first
    some = order[: max(2, int((counts[order].cumsum(0) <= _MOST_IMAGES).sum()))].sort().values
    rows = _rows(torch.isin(classes, some))
    few = torch.searchsorted(some, classes[rows])
    folds = list(_leave_out(raw[rows], few, lambda chosen: axes_of(rows[chosen]), _MOST_QUERIES))
    learned = _learn_own_shapes(folds, _learn(folds))
    queries = _leave_out(raw, classes, axes_of, min(4096, max(512, 2**29 // len(raw))))
    fitted = _calibrate(queries, learned, *_choose_norm_power(folds, learned, raw))
    growth, parameters = _growth(counts), fitted.parameters
    grown = parameters._replace(image=growth * parameters.image, mean=growth * parameters.mean)
    return fitted._replace(parameters=grown, slope=fitted.slope / growth)


def fit_one_shot(raw: Tensor, classes: Tensor, axes_of: AxesOf) -> Fitted:
    """For galleries of one image per class, from simulated ones: one random image, three others are queries.

    They have half of the classes; K is that of the other half, because a gallery's K has not seen its classes either.
    """
    folds, count = [], int(classes.max()) + 1
    for seed in range(min(16, 1 + 2 * _MOST_QUERIES // (3 * count))):
        ranks = _random_ranks(classes, seed)
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
        chosen = torch.isin(classes, order[: max(2, count // 2)])
        queries = chosen & (ranks > 0) & (ranks <= 3)
        folds.append(Fold(_rows(queries), _rows(chosen & (ranks == 0)), _rows(~chosen), raw, classes, axes_of))
    learned = _learn(folds, exponent_penalty=1.0)
    return _calibrate(iter(folds), learned, *_choose_norm_power(folds, learned, raw))


def _leave_out(raw: Tensor, classes: Tensor, axes_of: AxesOf, most: int) -> Iterator[Fold]:
    """Folds with at most `most` queries in all, as many of each class as possible."""
    ranks, several = _random_ranks(classes), torch.bincount(classes)[classes] > 1
    queries = _rows(several)
    queries = queries[torch.argsort(ranks[queries], stable=True)][:most]
    for number in torch.unique(ranks[queries] % _FOLDS).tolist():
        rest = _rows(~(several & (ranks % _FOLDS == number)))
        yield Fold(queries[ranks[queries] % _FOLDS == number], rest, rest, raw, classes, axes_of)


def _rows(mask: Tensor) -> Tensor:
    return mask.nonzero().flatten()


def _random_ranks(classes: Tensor, seed: int = 0) -> Tensor:
    """The place of each image in a random order of its class, 0 … n_c−1, (images,)."""
    order = torch.randperm(len(classes), generator=torch.Generator().manual_seed(seed))
    order = order[torch.argsort(classes[order], stable=True)]
    counts = torch.bincount(classes)
    ranks = torch.arange(len(order)) - (counts.cumsum(0) - counts)[classes[order]]
    return torch.empty_like(order).scatter_(0, order, ranks)


def _growth(counts: Tensor) -> float:
    """g(n)/g(n′), g(n) = n/(n + 3/2), for n images per class and n′ in the folds: k1 + k2 grew like g.

    It is 1.43 for classes of two images, where probabilities were too low without it, 1.06 for five, 1.01 for twenty.
    """
    images = float(counts[counts > 1].double().mean())
    fewer = images - math.ceil(images / _FOLDS)
    return images / (images + 1.5) * (fewer + 1.5) / fewer


def _usual(fold: Fold) -> Tensor:
    """Where learning starts: k1 = k2 = 8 for directions all over the sphere, more if they lie in a narrow cone."""
    start = _USUAL.clone()
    center = fold.axes.stretch(fold.gallery, float(start[2])).mean(0)
    start[:2] -= torch.log(1 - center.square().sum()).clamp_min(-10.0)
    return start


def _learn(folds: list[Fold], exponent_penalty: float = 0.0) -> Parameters:
    """k1, k2, a and β, with the shared shape only."""
    usual, strength = _usual(folds[0]), _STRENGTH / sum(len(fold.labels) for fold in folds)
    strength[2] += exponent_penalty
    make = lambda theta: Parameters(theta[0].exp(), theta[1].exp(), theta[2], theta[3])  # noqa: E731
    return _minimise(folds, make, usual, usual, strength)


def _learn_own_shapes(folds: list[Fold], shared: Parameters) -> Parameters:
    """ν, and k1, k2 and β again; a stays."""
    usual, strength = _usual(folds[0]), torch.ones(4) / sum(len(fold.labels) for fold in folds)
    usual[2] = math.log(_USUAL_SHARED_IMAGES)
    start = torch.tensor([math.log(shared.image), math.log(shared.mean), float(usual[2]), shared.size_offset])
    make = lambda theta: Parameters(theta[0].exp(), theta[1].exp(), shared.exponent, theta[3], theta[2].exp())  # noqa: E731
    return _minimise(folds, make, start, usual, strength)


def _minimise(
    folds: list[Fold], make: Callable[[Tensor], Parameters], start: Tensor, usual: Tensor, strength: Tensor
) -> Parameters:
    """The parameters made from the θ that minimises the mean negative log-posterior + Σ strength·(θ − usual)²."""
    labels = torch.cat([fold.labels for fold in folds])
    weights = 1 / torch.bincount(labels)  # classes count alike
    theta = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([theta], max_iter=25, tolerance_change=1e-5, line_search_fn="strong_wolfe")

    def objective() -> Tensor:
        optimizer.zero_grad()
        parts = [(strength * (theta - usual).square()).sum()]
        parts[0].backward()
        for fold in folds:  # one at a time, for less memory
            share = weights[fold.labels] / weights[labels].sum()
            parts.append(-(share * fold.log_posteriors(make(theta), torch.ones_like(share))).sum())
            parts[-1].backward()
        return torch.stack([part.detach() for part in parts]).sum()

    optimizer.step(objective)
    return Parameters._make(None if value is None else float(value) for value in make(theta.detach()))


@torch.no_grad()
def _choose_norm_power(folds: list[Fold], parameters: Parameters, raw: Tensor) -> tuple[float, float]:
    """The typical norm, and the strongest use of norms that does not lower the likelihood."""
    typical = float(torch.linalg.vector_norm(raw, dim=1).clamp_min(1e-12).log().mean().exp())

    def mean_log_posterior(power: float) -> float:
        parts = [fold.log_posteriors(parameters, sharpness(fold.raw, typical, power)) for fold in folds]
        return float(torch.cat(parts).mean())

    without = mean_log_posterior(0.0)
    return typical, next((power for power in _NORM_POWERS if mean_log_posterior(power) >= without), 0.0)


@torch.no_grad()
def _calibrate(folds: Iterator[Fold], parameters: Parameters, typical: float, norm_power: float) -> Fitted:
    """Classify left-out queries, and again with their classes left out, to recognise unknown classes."""
    parts = []
    for fold in folds:
        sharp = sharpness(fold.raw, typical, norm_power)
        by_direction = fold.scores(parameters, torch.ones_like(sharp)) if norm_power > 0 else None
        for scores, labels in fold.scores(parameters, sharp):
            plain = scores if by_direction is None else next(by_direction)[0]
            posterior = scores.softmax(1)
            best, column = posterior.max(1, keepdim=True)
            # Norms would move the scores of known and unknown classes alike.
            highest, without = plain.amax(1, keepdim=True), plain.scatter(1, labels, -math.inf).amax(1, keepdim=True)
            parts.append(torch.cat([posterior.gather(1, labels), best, highest, column == labels, without], dim=1))
    *calibration, without = torch.cat(parts).T
    # Scores of known and unknown classes as two Gaussians of one variance, for which the log-odds are linear.
    difference, middle = calibration[2].mean() - without.mean(), (calibration[2].mean() + without.mean()) / 2
    slope = float(difference / (0.5 * (calibration[2].var() + without.var()) + 1e-6))
    fitted = Fitted(parameters, typical, norm_power, slope, -slope * float(middle), torch.stack(calibration))
    fitted.calibration[2] = fitted.known(fitted.calibration[2])
    return fitted
