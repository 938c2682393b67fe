"""Classes: their labels as numbers, and the shape that they share, how much embeddings vary along each axis."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..functional.pairing import unit_vectors
from ..metrics.inputs import as_embeddings
from .fitting import fit_one_shot
from .mixture import Fitted, ShapeAxes
from .own_shapes import deviations

Label: TypeAlias = int | str
_MOST_DEGREES = 2000.0  # ν: a prior counts like this many images at most
_RIDGE = 0.1  # ε


class WithinClassShape:
    """A prior for galleries: the pooled within-class covariance of other classes of the same model.

    covariance: (M, M), of directions z/‖z‖; its scale has no effect.
    degrees: how many images it counts for; a gallery uses at most 2000.
    one_shot: what a gallery with one image per class uses, which cannot learn from its own images.
    """

    def __init__(self, covariance: Tensor, degrees: float = _MOST_DEGREES, one_shot: Fitted | None = None):
        self.covariance, self.degrees, self.one_shot = covariance.detach().cpu().double(), degrees, one_shot

    @classmethod
    def from_embeddings(cls, embeddings: Any, labels: Any) -> "WithinClassShape":
        """From raw embeddings (items, M) and labels (items,), with two or more images per class.

        Prefer classes that the model was not trained on, such as validation classes: training classes look easier than
        new ones, so the probabilities of one-shot galleries, which are learned here, would be too high.
        """
        raw = as_embeddings("embeddings", embeddings).cpu().float()
        classes, directions = number_labels(labels, len(raw))[1], unit_vectors(raw)
        scatter, degrees = _within_scatter(directions, classes)
        if degrees == 0 or int(classes.max()) == 0:
            raise ValueError("a shape needs two or more classes, and classes with two or more images")
        one_shot = fit_one_shot(raw, classes, lambda rows: shape_axes(None, directions[rows], classes[rows]))
        return cls(scatter / degrees, degrees, one_shot)

    @classmethod
    def from_loss(cls, loss: Any) -> "WithinClassShape":
        r"""From a trained NonIsotropicVMFLoss or NivMFProxyLoss, alone or in a JointProxyLoss: S = diag(κ_m^{−2}).

        κ_m is the geometric mean over classes. One-shot galleries need more: `from_embeddings`.
        """
        concentration = getattr(getattr(loss, "probabilistic", None), "concentration", None)
        if concentration is None or concentration.shape[1] == 1:
            raise ValueError(f"{type(loss).__name__} has no concentrations per dimension: use from_embeddings")
        return cls(torch.diag(torch.exp(-2 * concentration.detach().double().log().mean(0))))


def number_labels(labels: Any, count: int, known: Sequence[Label] = ()) -> tuple[list[Label], Tensor]:
    """All labels, `known` ones first, and the place of each of `count` labels among them, (count,)."""
    values = labels.tolist() if hasattr(labels, "tolist") else list(labels)
    if len(values) != count:
        raise ValueError(f"labels must have one entry for each of {count} embeddings, got {len(values)}")
    for label in values:
        if isinstance(label, bool) or not isinstance(label, str | Integral):
            raise ValueError(f"a label must be an integer or a string, got {label!r}")
    values = [label if isinstance(label, str) else int(label) for label in values]  # JSON has no integers of NumPy
    columns = {label: column for column, label in enumerate(dict.fromkeys([*known, *values]))}
    return list(columns), torch.tensor([columns[label] for label in values], dtype=torch.long)


def _within_scatter(directions: Tensor, classes: Tensor) -> tuple[Tensor, float]:
    """The sum of squared deviations from class means, (M, M), float64, and its degrees of freedom, images − classes."""
    _, residuals, degrees = deviations(directions, classes)
    return (residuals.T @ residuals).double(), float(degrees.sum())


def shape_axes(prior: WithinClassShape | None, directions: Tensor, classes: Tensor) -> ShapeAxes:
    r"""The axes of S ∝ Σ_within + ν·S_prior, where S_prior is brought to the scale of the gallery.

    Without a prior, S_prior = I counts like M images. v_m are the eigenvalues plus ε times their mean, divided by their
    geometric mean.
    """
    scatter, degrees = _within_scatter(directions, classes)
    dim, trace = len(scatter), float(scatter.trace())
    covariance = torch.eye(dim, dtype=torch.double) if prior is None else prior.covariance
    weight = dim if prior is None else min(prior.degrees, _MOST_DEGREES)
    scale = trace / degrees / float(covariance.trace()) if trace > 0 else 1.0
    values, vectors = torch.linalg.eigh(scatter + weight * scale * covariance)
    variances = values.clamp_min(0) + _RIDGE * values.mean()
    return ShapeAxes((variances / variances.log().mean().exp()).float(), vectors.float())
