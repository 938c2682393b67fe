"""How embeddings fill their space: within classes and over the dimensions.

The functions use embeddings as they are. Pass unit vectors if only the angle matters.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from scipy import stats
from torch import Tensor

from .inputs import UndefinedMetricError, as_embeddings, as_labels


def cluster_diversity(embeddings: Any, labels: Any, per_class: bool = False) -> float:
    r"""Var ‖z_i − z_j‖ over all pairs of the same class: how much clusters differ in size and shape
    [Kirchhof et al. 2022, supplement]. 0 if all pairs have the same distance; higher is more diverse.

    embeddings: (items, size). labels: (items,).
    per_class: the mean of each class's variance, instead of the variance of the pairs of all classes pooled, which also
        grows with the difference between wide and narrow classes.

    Raises UndefinedMetricError, a ValueError, if no class has two items.
    """
    points = as_embeddings("embeddings", embeddings).double()
    labels = as_labels("labels", labels, len(points)).to(points.device)
    classes = [points[labels == label] for label in labels.unique()]
    distances = [torch.pdist(members) for members in classes if len(members) > 1]
    if not distances:
        raise UndefinedMetricError(f"none of the {len(classes)} classes has two items: there are no pairs")
    groups = distances if per_class else [torch.cat(distances)]
    return float(torch.stack([group.var(correction=0) for group in groups]).mean())


def feature_diversity(embeddings: Any) -> float:
    r"""−KL(U ‖ S) from the uniform distribution U to the normalised singular values S = σ/Σσ of the embeddings: minus
    the spectral decay ρ of Roth et al. (2020). Higher is more diverse, as in the paper: 0 if all directions are used
    equally, lower if few directions dominate.

    −KL(U ‖ S) = log D + (1/D)·Σ_d log S_d with D = min(items, size) singular values. It is −∞ if a direction is not
    used at all.

    embeddings: (items, size), not centred.

    Raises UndefinedMetricError, a ValueError, if all embeddings are zero.
    """
    points = as_embeddings("embeddings", embeddings).double()
    spectrum = torch.linalg.svdvals(points).cpu()
    if float(spectrum.max()) == 0:
        raise UndefinedMetricError("all embeddings are zero: there is no spectrum")
    rounding = spectrum.max() * max(points.shape) * torch.finfo(torch.double).eps
    spectrum = torch.where(spectrum <= rounding, 0.0, spectrum)
    return -float(stats.entropy(torch.ones_like(spectrum).numpy(), spectrum.numpy()))  # SciPy normalises both


DIVERSITY: dict[str, Callable[[Tensor, Tensor], float]] = {
    "cluster_diversity": cluster_diversity,
    "cluster_diversity_per_class": partial(cluster_diversity, per_class=True),
    "feature_diversity": lambda embeddings, labels: feature_diversity(embeddings),
}
DIVERSITY_METRICS = tuple(DIVERSITY)
