"""Means over queries and over classes, as PML takes them."""

import torch
from torch import Tensor

from .label_statistics import LabelStatistics


def average(
    values: Tensor, labels: LabelStatistics, avg_of_avgs: bool = False, return_per_class: bool = False
) -> float | list[float]:
    """The mean over queries that have something to find, of `values` (queries,).

    avg_of_avgs: mean of the class means instead.
    return_per_class: the class means, in the order of the sorted labels that have something to find.

    NaN, once or for every label, where no query has anything to find.
    """
    kept = labels.not_lone
    if not bool(kept.any()):
        return [float("nan")] * len(labels.classes) if return_per_class else float("nan")
    if not (avg_of_avgs or return_per_class):
        return float(values[kept].mean())
    means = _class_means(values[kept], labels.class_of_query[kept], len(labels.classes))
    return means.tolist() if return_per_class else float(means.mean())


def _class_means(values: Tensor, classes: Tensor, num_classes: int) -> Tensor:
    """Of the classes that occur. PML's mask of (queries, classes) doubles would be 5.5 GB for SOP."""
    sizes = torch.bincount(classes, minlength=num_classes)
    sums = torch.zeros(num_classes, dtype=values.dtype, device=values.device).index_add(0, classes, values)
    return (sums / sizes)[sizes > 0]
