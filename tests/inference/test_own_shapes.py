"""The shapes of classes compared with Gaussians of torch, with and without an index, and what they are worth."""

import pytest
import torch
from torch.distributions import MultivariateNormal
from torch.nn import functional as F

from pml_nivmf.inference import mixture
from pml_nivmf.inference.own_shapes import own_shapes, own_terms, pooled_variance
from tests.inference.galleries import enrol, halves

DIM = 8


def drawn_with_own_shapes(classes: int, per_class: int):
    """Classes that are wide along two axes, others for every class."""
    generator = torch.Generator().manual_seed(0)
    centres = F.normalize(torch.randn(classes, DIM, generator=generator))
    widths = torch.full((classes, DIM), 0.1)
    for row in widths:
        row[torch.randperm(DIM, generator=generator)[:2]] = 0.8
    labels = torch.arange(classes).repeat_interleave(per_class)
    return centres[labels] + widths[labels] * torch.randn(len(labels), DIM, generator=generator), labels


def test_terms_are_the_difference_of_two_gaussians():
    torch.manual_seed(0)
    classes = torch.tensor([0] * 3 + [1] * 20 + [2] + [4] * 7)  # one with more images than axes, one image, none
    images = F.normalize(torch.randn(len(classes), DIM, dtype=torch.double))
    queries, shared_images = F.normalize(torch.randn(5, DIM, dtype=torch.double)), 12.0
    variance = pooled_variance(images, classes)
    terms = own_terms(queries, own_shapes(images, classes, 5, variance), shared_images)
    squares = sum(float((images[classes == c] - images[classes == c].mean(0)).square().sum()) for c in (0, 1, 2, 4))
    assert float(variance) == pytest.approx(squares / (len(classes) - 4) / DIM)
    for c in (0, 1, 2, 4):
        members = images[classes == c]
        residuals, degrees = members - members.mean(0), len(members) - 1
        shared = variance * torch.eye(DIM, dtype=torch.double)
        own = (shared_images * shared + residuals.T @ residuals) / (shared_images + degrees)
        log_densities = [
            MultivariateNormal(members.mean(0), covariance).log_prob(queries) for covariance in (own, shared)
        ]
        torch.testing.assert_close(terms[:, c], variance * (log_densities[0] - log_densities[1]))
    assert terms[:, 2].abs().max() < 1e-12, "one image has no shape of its own"


def test_identical_images_have_no_shape():
    images = F.normalize(torch.randn(3, DIM)).repeat_interleave(4, 0)
    classes = torch.arange(3).repeat_interleave(4)
    terms = own_terms(images, own_shapes(images, classes, 3, pooled_variance(images, classes)), 100.0)
    assert terms.isfinite().all()


def test_fit_learns_that_classes_have_shapes_of_their_own():
    embeddings, labels = drawn_with_own_shapes(classes=12, per_class=60)
    enrolled, asked = halves(labels, 40)
    gallery = enrol(embeddings[enrolled], labels[enrolled]).fit()
    own = gallery(embeddings[asked]).log().gather(1, labels[asked, None]).mean()
    parameters = gallery.space.fitted.parameters
    assert parameters.shared_images < 30, "far fewer than the usual 300, because classes differ"
    gallery.space.fitted = gallery.space.fitted._replace(parameters=parameters._replace(shared_images=None))
    shared = gallery(embeddings[asked]).log().gather(1, labels[asked, None]).mean()
    assert own > shared + 0.1


def test_an_index_gives_the_same_probabilities(monkeypatch):
    pytest.importorskip("faiss")
    embeddings, labels = drawn_with_own_shapes(classes=12, per_class=10)
    gallery = enrol(embeddings, labels).fit()
    exact = gallery(embeddings[::7])
    monkeypatch.setattr(mixture, "_SMALLEST_INDEX", 0)
    monkeypatch.setattr(mixture, "_OWN_SHAPES", 12)
    gallery.space = mixture.GallerySpace(gallery.space.axes, gallery.space.fitted, "Flat")
    torch.testing.assert_close(gallery(embeddings[::7]), exact, atol=1e-4, rtol=1e-3)
    monkeypatch.setattr(mixture, "_OWN_SHAPES", 4)
    assert float(0.5 * (gallery(embeddings[::7]) - exact).abs().sum(1).mean()) < 0.02
