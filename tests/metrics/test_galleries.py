"""Random galleries, and metrics of posteriors compared with scikit-learn and with a case computed by hand."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss, roc_auc_score

from pml_nivmf.metrics import draw_gallery, posterior_metrics


def test_galleries_have_k_images_of_each_class_and_the_same_queries():
    labels = torch.tensor([3] * 10 + [7] * 4 + [9])
    queries = {shots: draw_gallery(labels, shots, seed=1)[1].tolist() for shots in (1, 5, None)}
    assert len({tuple(rows) for rows in queries.values()}) == 1
    assert labels[queries[1]].tolist() == [3, 3, 7]
    for shots, counts in {1: [1, 1, 1], 5: [5, 3, 1], None: [8, 3, 1]}.items():
        gallery = draw_gallery(labels, shots, seed=1)[0]
        assert torch.unique(labels[gallery], return_counts=True)[1].tolist() == counts
        assert not set(gallery.tolist()) & set(queries[1])
    assert draw_gallery(labels, 5, seed=2)[1].tolist() != queries[5]


def test_metrics_equal_those_of_scikit_learn():
    generator = np.random.default_rng(0)
    probabilities = generator.dirichlet(np.ones(5), size=60)
    labels = generator.integers(0, 5, 60)
    metrics = posterior_metrics(probabilities, labels)
    right = probabilities.argmax(1) == labels
    assert metrics["accuracy"] == pytest.approx(right.mean())
    assert metrics["nll"] == pytest.approx(log_loss(labels, probabilities))
    assert metrics["auroc"] == pytest.approx(roc_auc_score(right, probabilities.max(1)))
    most_certain = np.argsort(-probabilities.max(1))[:48]
    assert metrics["accuracy_at_coverage_80"] == pytest.approx(right[most_certain].mean())


def test_metrics_by_hand():
    metrics = posterior_metrics([[0.8, 0.2], [0.4, 0.6]], [0, 1])
    assert metrics["nll"] == pytest.approx(-math.log(0.8 * 0.6) / 2)
    assert metrics["ece"] == pytest.approx(0.3)
    assert math.isnan(metrics["auroc"])  # no answer is wrong
    assert posterior_metrics([[1.0, 0.0], [1.0, 0.0]], [0, 1])["nll"] == pytest.approx(-math.log(1e-12) / 2)
