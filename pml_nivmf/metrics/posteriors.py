"""Probabilities of classes and how well they are calibrated, and the concentrations of proxies."""

import math
from typing import Any

import torch
from torch import Tensor

from ..checks import check_count
from .certainty import certainty_auroc, recall_at_coverage
from .inputs import as_embeddings, as_labels, or_nan

_SMALLEST = 1e-12  # a probability of zero would make every mean infinite


def draw_gallery(labels: Any, shots: int | None, seed: int) -> tuple[Tensor, Tensor]:
    """Rows of a random gallery and of its queries, from labels (items,).

    Queries are a fifth of each class, at least one image, the same for all numbers of shots. The gallery has `shots` of
    the other images of each class, or all of them if `shots` is None or larger. Classes of one image are enrolled only.
    """
    labels = as_labels("labels", labels, len(labels)).cpu()
    gallery, queries = [], []
    generator = torch.Generator().manual_seed(seed)
    for label in torch.unique(labels):
        rows = (labels == label).nonzero().flatten()
        rows = rows[torch.randperm(len(rows), generator=generator)]
        asked = max(1, len(rows) // 5) if len(rows) > 1 else 0
        queries.append(rows[:asked])
        gallery.append(rows[asked:][:shots])
    return torch.cat(gallery), torch.cat(queries)


def posterior_metrics(probabilities: Any, labels: Any) -> dict[str, float]:
    """Metrics of probabilities (items, classes) with the columns `labels` (items,) of the right classes.

    accuracy; nll, the mean −log p(label); ece, the expected calibration error; auroc of the highest probability as a
    predictor of right answers, NaN if all are right or wrong; accuracy_at_coverage_80, of the most certain 80%.
    """
    probabilities = as_embeddings("probabilities", probabilities).double().cpu()
    labels = as_labels("labels", labels, len(probabilities)).cpu()
    ece = expected_calibration_error(probabilities, labels)
    certainty, best = probabilities.max(1)
    right, of_label = (best == labels).double(), probabilities.gather(1, labels.unsqueeze(1))
    return {
        "accuracy": float(right.mean()),
        "nll": -math.fsum(of_label.clamp_min(_SMALLEST).log().flatten().tolist()) / len(labels),
        "ece": ece,
        "auroc": or_nan(certainty_auroc, certainty, right),
        "accuracy_at_coverage_80": recall_at_coverage(certainty, right, [0.8])[0.8],
    }


def expected_calibration_error(probabilities: Any, labels: Any, bins: int = 15) -> float:
    r"""ECE = Σ_b (n_b/n)·|accuracy_b − confidence_b|, in [0, 1], 0 is calibrated [Naeini et al. 2015; Guo et al. 2017].

    The confidence of an item is its highest probability; the item is right if that is the probability of its label.
    `bins` bins (l, u] of equal width divide the confidences; accuracy_b and confidence_b are means over bin b.

    probabilities: (items, classes), each row sums to one, such as `loss.get_logits(embeddings).softmax(1)`: the softmax
        over proxies, on data of the training classes.
    labels: (items,), integers 0 … classes−1.
    """
    check_count("bins", bins)
    probabilities = as_embeddings("probabilities", probabilities).double().cpu()
    near_one = (probabilities.sum(dim=1) - 1).abs() < 1e-2  # also in half precision
    if bool((probabilities < 0).any()) or not bool(near_one.all()):
        raise ValueError("each row of probabilities must be non-negative and sum to one: apply a softmax to logits")
    labels = as_labels("labels", labels, len(probabilities)).cpu()
    confidence, predicted = probabilities.max(dim=1)
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.double)
    gaps = torch.zeros(bins, dtype=torch.double)
    gaps.index_add_(0, torch.bucketize(confidence, edges[1:-1]), (predicted == labels).double() - confidence)
    return float(gaps.abs().sum() / len(labels))


def concentration_anisotropy(concentration: Any) -> Tensor:
    r"""The coefficient of variation of each class's concentrations, std_m(κ_m)/mean_m(κ_m), (classes,).

    0 is an isotropic class, a plain von Mises-Fisher distribution. The value does not depend on the overall
    concentration of the class. Its maximum, all concentration in one of M dimensions, is √(M−1).

    concentration: κ > 0, (classes, M), as learned by NonIsotropicVMFLoss and NivMFProxyLoss.
    """
    values = as_embeddings("concentration", concentration).double()
    if not bool((values > 0).all()):
        raise ValueError(f"concentration must be positive, got {float(values.min())}: pass κ, not log κ")
    deviation, mean = torch.std_mean(values, dim=1, correction=0)
    return deviation / mean


@torch.no_grad()
def concentration_statistics(loss: Any) -> dict[str, Any]:
    """Statistics over classes of the mean concentration and of the anisotropy, which is 0 for a vMF."""
    concentration = getattr(getattr(loss, "probabilistic", None), "concentration", None)
    if concentration is None:
        return {"left_out": f"{type(loss).__name__} has no concentrations"}
    anisotropy = concentration_anisotropy(concentration)
    measures = {"concentration": concentration.double().mean(dim=1), "anisotropy": anisotropy}
    return {
        name: {"mean": float(values.mean()), "median": float(values.quantile(0.5)), "largest": float(values.max())}
        for name, values in measures.items()
    }
