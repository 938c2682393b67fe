"""Are probabilities what they say they are?"""

from typing import Any

import torch

from ..checks import check_count
from .checks import as_embeddings, as_labels

_SUM_TOLERANCE = 1e-2  # of probabilities made in half precision


def expected_calibration_error(probabilities: Any, labels: Any, bins: int = 15) -> float:
    r"""ECE = Σ_b (n_b/n)·|accuracy_b − confidence_b|, in [0, 1], 0 is calibrated [Naeini et al. 2015; Guo et al. 2017].

    The confidence of an item is its highest probability, and the item is right if that is its label's. Items are put
    into `bins` bins (l, u] of equal width by confidence; accuracy_b and confidence_b are the means within bin b.

    probabilities: (items, classes), rows that sum to one, such as `loss.get_logits(embeddings).softmax(1)`: the softmax
        over proxies, on data of the classes that were trained on.
    labels: (items,), integers 0 … classes−1.
    """
    check_count("bins", bins)
    probabilities = as_embeddings("probabilities", probabilities).double()
    count, classes = probabilities.shape
    _check_probabilities(probabilities)
    labels = as_labels("labels", labels, count).to(probabilities.device)
    outside = (labels < 0) | (labels >= classes) | (labels != labels.long())
    if bool(outside.any()):
        first = labels[outside][0].item()
        raise ValueError(f"labels must be integers in 0 … {classes - 1}, the columns of probabilities, got {first}")
    confidence, predicted = probabilities.max(dim=1)
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.double, device=probabilities.device)
    place = torch.bucketize(confidence, edges[1:-1])
    gaps = torch.zeros(bins, dtype=torch.double, device=probabilities.device)
    gaps.index_add_(0, place, (predicted == labels).double() - confidence)
    return float(gaps.abs().sum() / count)


def _check_probabilities(probabilities: torch.Tensor) -> None:
    off = (probabilities.sum(dim=1) - 1).abs() > _SUM_TOLERANCE
    wrong = off | (probabilities < 0).any(dim=1)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        total, low = float(probabilities[row].sum()), float(probabilities[row].min())
        raise ValueError(
            f"probabilities must be non-negative rows that sum to one; row {row} sums to {total:.4g}, its least entry "
            f"is {low:.4g}: pass logits through a softmax"
        )
