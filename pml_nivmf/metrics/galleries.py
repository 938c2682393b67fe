"""How good are the posteriors of galleries with k images per class?"""

import math
from typing import Any

import torch
from torch import Tensor

from .certainty import certainty_auroc
from .coverage import recall_at_coverage
from .inputs import as_embeddings, as_labels
from .names import or_nan
from .proxies import expected_calibration_error

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
