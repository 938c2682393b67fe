"""The shared shape compared with scikit-learn's within-class covariance and with cases computed by hand."""

import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch.nn import functional as F

from pml_nivmf.inference import WithinClassShape
from pml_nivmf.inference.classes import shape_axes
from pml_nivmf.losses import NonIsotropicVMFLoss, VMFProxyLoss
from tests.inference.galleries import draw


def test_covariance_equals_that_of_discriminant_analysis():
    embeddings, labels, _ = draw(classes=6, per_class=10)
    shape = WithinClassShape.from_embeddings(embeddings, [f"class {label}" for label in labels.tolist()])
    reference = LinearDiscriminantAnalysis(solver="lsqr", store_covariance=True)
    reference.fit(F.normalize(embeddings).double().numpy(), labels.numpy())
    assert shape.degrees == 60 - 6
    expected = torch.from_numpy(reference.covariance_) * 60 / 54  # scikit-learn divides by the number of images
    torch.testing.assert_close(shape.covariance, expected, atol=1e-7, rtol=1e-5)


def test_axes_of_a_prior_alone_and_of_nothing():
    prior = WithinClassShape(torch.diag(torch.tensor([4.0, 1.0])))
    axes = shape_axes(prior, torch.eye(2), torch.tensor([0, 1]))  # one image per class
    variances = torch.tensor([1.25, 4.25])  # plus a tenth of the mean, 2.5
    torch.testing.assert_close(axes.variances, variances / variances.prod().sqrt())
    stretched = axes.stretch(torch.tensor([[0.6, 0.8]]) @ axes.vectors, exponent=1.0)
    expected = F.normalize(torch.tensor([[0.8, 0.6]]) / variances.sqrt())  # the axis of the smaller variance first
    torch.testing.assert_close(stretched.abs(), expected)
    assert torch.equal(shape_axes(None, torch.eye(2), torch.tensor([0, 1])).variances, torch.ones(2))


def test_gallery_and_prior_are_weighted_by_their_images():
    embeddings, labels, _ = draw(classes=4, per_class=6)
    directions = F.normalize(embeddings)
    residuals = directions - torch.stack([directions[labels == c].mean(0) for c in range(4)])[labels]
    scatter = (residuals.T @ residuals).double()
    round_shape = torch.eye(16, dtype=torch.double) * scatter.trace() / 20 / 16
    values = torch.linalg.eigvalsh(scatter + 300 * round_shape)
    values = values + 0.1 * values.mean()
    axes = shape_axes(WithinClassShape(5 * torch.eye(16), degrees=300), directions, labels)
    torch.testing.assert_close(axes.variances.double(), values / values.log().mean().exp(), atol=1e-5, rtol=1e-5)


def test_concentrations_of_a_loss_are_a_shape():
    loss = NonIsotropicVMFLoss(2, 3)
    loss.log_concentration.data = torch.tensor([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]])
    shape = WithinClassShape.from_loss(loss)
    torch.testing.assert_close(shape.covariance, torch.exp(torch.tensor(-2.0)).double() * torch.eye(3).double())
    assert shape.one_shot is None
    with pytest.raises(ValueError, match="VMFProxyLoss has no concentrations per dimension"):
        WithinClassShape.from_loss(VMFProxyLoss(2, 3))


@pytest.mark.parametrize(
    ("labels", "problem"),
    [([0, 0, 0, 0], "two or more classes"), ([0, 1, 2, 3], "two or more images"), ([0, 0, 1], "each of 4 embeddings")],
)
def test_a_shape_needs_classes_and_images(labels, problem):
    with pytest.raises(ValueError, match=problem):
        WithinClassShape.from_embeddings(torch.randn(4, 3), labels)
