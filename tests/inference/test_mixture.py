"""Scores of mixtures compared with loops over images, and the scores from candidates with those from all images."""

import math

import pytest
import torch
from torch.nn import functional as F

from pml_nivmf.inference.mixture import (
    Parameters,
    candidate_scores,
    class_scores,
    make_components,
    make_index,
    nearest_images,
)
from tests.inference.galleries import draw
from tests.references import relative_log_normalizer

PARAMETERS = Parameters(image=7.0, mean=5.0, exponent=0.5, size_offset=1.5)


def naive_scores(queries, images, classes, sharpness):
    dim = queries.shape[1]
    scores = torch.zeros(len(queries), int(classes.max()) + 1, dtype=torch.double)
    for b, query in enumerate(queries):
        for c in range(scores.shape[1]):
            members = images[classes == c]
            mean = F.normalize(members.sum(0), dim=0)
            density = 0.0
            for x in members:
                nu = PARAMETERS.image * x + PARAMETERS.mean * mean
                log_density = relative_log_normalizer(float(nu.norm()), dim) + float(sharpness[b] * query @ nu)
                density += math.exp(log_density) / len(members)
            scores[b, c] = math.log(density) + PARAMETERS.size_offset / len(members)
    return scores


@pytest.fixture
def data():
    torch.manual_seed(0)
    images, queries = (F.normalize(torch.randn(n, 6, dtype=torch.double)) for n in (40, 5))
    return queries, images, torch.arange(40) % 7, torch.tensor([1.0, 0.5, 0.0, 2.0, 1.0], dtype=torch.double)


def test_scores_equal_a_loop_over_images(data):
    queries, images, classes, sharpness = data
    scores = class_scores(queries, make_components(images, classes, 7, PARAMETERS), sharpness)
    torch.testing.assert_close(scores, naive_scores(*data), atol=1e-9, rtol=1e-9)


def test_a_class_without_images_is_impossible(data):
    queries, images, classes, sharpness = data
    scores = class_scores(queries, make_components(images, classes, 8, PARAMETERS), sharpness)
    assert torch.equal(scores.softmax(1)[:, 7], torch.zeros(5, dtype=torch.double))


def test_candidates_that_are_all_images_give_the_same_scores(data):
    pytest.importorskip("faiss")
    queries, images, classes, sharpness = (part.float() if part.is_floating_point() else part for part in data)
    components = make_components(images, classes, 7, PARAMETERS)
    cosines, rows = nearest_images(make_index("Flat", images), queries)
    exact = class_scores(queries, components, sharpness)
    torch.testing.assert_close(candidate_scores(queries, components, sharpness, cosines, rows), exact)
    padded = torch.cat([rows, torch.full((5, 1), -1)], dim=1)  # faiss's mark for no result
    more = candidate_scores(queries, components, sharpness, torch.cat([cosines, cosines[:, -1:]], dim=1), padded)
    torch.testing.assert_close(more, exact)


def test_few_candidates_give_similar_probabilities():
    pytest.importorskip("faiss")
    embeddings, labels, _ = draw(classes=20, per_class=40)
    images = F.normalize(embeddings)
    components = make_components(images, labels, 20, PARAMETERS._replace(image=5.0, mean=10.0, size_offset=0.0))
    cosines, rows = nearest_images(make_index("Flat", images), images[::40])
    exact = class_scores(images[::40], components, torch.ones(20)).softmax(1)
    few = candidate_scores(images[::40], components, torch.ones(20), cosines[:, :40], rows[:, :40]).softmax(1)
    assert float(0.5 * (few - exact).abs().sum(1).mean()) < 0.05
    none = candidate_scores(images[::40], components, torch.ones(20), cosines[:, :1], rows[:, :1]).softmax(1)
    assert float(0.5 * (none - exact).abs().sum(1).mean()) < 0.1
