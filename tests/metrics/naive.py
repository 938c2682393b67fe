"""Clustered data, and every retrieval metric by loops over queries and ranks in float64."""

import math

import numpy as np
import torch


def data(count=60, classes=7, dim=6, seed=0, lone=2):
    """Clustered directions with norms between 0.1 and 30; the last `lone` items are alone in their class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (count,), generator=generator)
    labels[count - lone :] = torch.arange(1000, 1000 + lone)
    centres = torch.randn(1002, dim, generator=generator)
    directions = centres[labels] + torch.randn(count, dim, generator=generator)
    return directions * torch.logspace(-1, 1.5, count)[torch.randperm(count, generator=generator)][:, None], labels


def ranking(query, reference, own, retrieval):
    """For every query the indices of the references except itself, nearest first."""
    query, reference = np.asarray(query, dtype=np.float64), np.asarray(reference, dtype=np.float64)
    rows = []
    for i, z in enumerate(query):
        if retrieval == "cosine":
            far = [-(z @ r) / (np.linalg.norm(z) * np.linalg.norm(r)) for r in reference]
        else:
            far = [np.linalg.norm(z - r) for r in reference]
        order = sorted(range(len(reference)), key=lambda j, far=far: far[j])
        rows.append([j for j in order if not (own and j == i)])
    return rows


def one_query(matches, relevant, counted, recall_at, k):
    """All metrics of a single query from its list of booleans."""

    def summed_precision(first):
        return sum(sum(matches[: i + 1]) / (i + 1) for i in range(min(first, len(matches))) if matches[i])

    k = len(matches) if k is None else k
    hits = [i + 1 for i, match in enumerate(matches[:k]) if match]
    metrics = {
        "precision_at_1": float(matches[0]),
        "r_precision": sum(matches[:relevant]) / relevant,
        "mean_average_precision_at_r": summed_precision(relevant) / relevant,
        "mean_average_precision": summed_precision(k) / relevant,
        "mean_reciprocal_rank": 1 / hits[0] if hits else 0.0,
        "map_at_1000": summed_precision(1000) / relevant,
        "map_at_1000_with_query": summed_precision(1000) / counted,
    }
    return metrics | {f"recall_at_{r}": float(any(matches[:r])) for r in recall_at}


def per_query(
    query, query_labels, reference, reference_labels, own, retrieval="cosine", recall_at=(1, 2, 4, 8), k=None
):
    """(label, metrics) of every query whose class has another item."""
    query_labels, reference_labels = list(query_labels), list(reference_labels)
    result = []
    for label, row in zip(query_labels, ranking(query, reference, own, retrieval), strict=True):
        counted = reference_labels.count(label)
        relevant = counted - int(own)
        if relevant > 0:
            matches = [reference_labels[j] == label for j in row]
            result.append((label, one_query(matches, relevant, counted, recall_at, k)))
    return result


def mean(values):
    return math.fsum(values) / len(values)


def averages(scored):
    return {name: mean([metrics[name] for _, metrics in scored]) for name in scored[0][1]}


def class_averages(scored):
    """Lists, in the order of the labels."""
    labels = sorted({label for label, _ in scored})
    return {
        name: [mean([metrics[name] for own, metrics in scored if own == label]) for label in labels]
        for name in scored[0][1]
    }
