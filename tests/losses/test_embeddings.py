"""The scale of embeddings, warm start from class means, and heads that take the scale over."""

import warnings

import pytest
import torch
from pytorch_metric_learning import losses as pml_losses
from pytorch_metric_learning.distances import CosineSimilarity
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from pml_nivmf.losses import (
    JointProxyLoss,
    NonIsotropicVMFLoss,
    VMFProxyLoss,
    move_scale_to_head,
    warm_start_from_loader,
)
from pml_nivmf.models import EmbeddingHead

from .variants import ALL, NORM_CARRYING

C, M, B = 5, 16, 12


@pytest.fixture
def batch():
    torch.manual_seed(0)
    return torch.randn(B, M), torch.randint(0, C, (B,))


def mean_scaled_norm(loss, embeddings):
    return (loss.embedding_scale * embeddings.norm(dim=1).mean()).item()


# Scale ----------------------------------------------------------------------------------------------------------


def test_scale_is_set_by_the_first_training_batch_and_kept():
    loss, labels = NonIsotropicVMFLoss(C, 512), torch.randint(0, C, (32,))
    embeddings = nn.Linear(64, 512)(torch.randn(32, 64))
    loss(embeddings, labels)
    assert mean_scaled_norm(loss, embeddings) == pytest.approx(4 * 512, rel=1e-4)
    before = loss.embedding_scale.clone()
    loss(100 * embeddings, labels)
    assert torch.equal(loss.embedding_scale, before)
    other = NonIsotropicVMFLoss(C, 512)
    other.load_state_dict(loss.state_dict())
    other(100 * embeddings, labels)
    assert torch.equal(other.embedding_scale, before), "a loaded scale must not be calibrated again"
    other.load_state_dict(NonIsotropicVMFLoss(C, 512).state_dict())
    assert float(other.embedding_scale) == 1
    other(100 * embeddings, labels)
    assert mean_scaled_norm(other, 100 * embeddings) == pytest.approx(4 * 512, rel=1e-4)


@pytest.mark.parametrize("make", NORM_CARRYING.values(), ids=NORM_CARRYING.keys())
def test_before_calibration_logits_do_not_depend_on_other_images(make, batch):
    """Evaluation takes the embeddings as they are and does not calibrate."""
    loss = make(C, M).eval()
    before = {name: value.clone() for name, value in loss.state_dict().items()}
    torch.manual_seed(1)
    alone = loss.get_logits(batch[0])
    torch.manual_seed(1)
    if "monte_carlo" not in vars(loss.distance).values():  # samples depend on the batch by the random numbers
        beside = loss.get_logits(torch.cat([batch[0], 50 * batch[0]]))[:B]
        torch.testing.assert_close(alone, beside)
    loss(*batch)
    torch.testing.assert_close(loss.state_dict(), before, rtol=0, atol=0)
    assert float(loss.embedding_scale) == 1
    loss.train()(*batch)
    assert float(loss.embedding_scale) != 1


@pytest.mark.parametrize(
    ("loss", "scale"),
    [(NonIsotropicVMFLoss(C, M, embedding_scale=7), 7), (VMFProxyLoss(C, M, distance=CosineSimilarity()), 1)],
)
def test_a_number_or_a_distance_without_norms_fixes_the_scale(loss, scale, batch):
    loss(*batch)
    loss.warm_start(batch[0], torch.arange(B) % C)
    assert float(loss.embedding_scale) == scale


@pytest.mark.parametrize("scale", ["auto", 1.0])
def test_normalised_embeddings_are_warned_about_once(scale, batch):
    loss, unit = NonIsotropicVMFLoss(C, M, embedding_scale=scale), F.normalize(batch[0], dim=1)
    with pytest.warns(UserWarning, match="all embeddings have length one"):
        loss(unit, batch[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss(unit, batch[1])
        NonIsotropicVMFLoss(C, M)(*batch)


@pytest.mark.parametrize("make", [NonIsotropicVMFLoss, VMFProxyLoss])
def test_starting_norm_is_an_option(make):
    """The softmax starts at the same sharpness whatever the norms are."""
    torch.manual_seed(0)
    embeddings, labels = torch.randn(40, M), torch.arange(40) % C
    spreads = []
    for per_dim in (2.0, 4.0, 32.0):
        loss = make(C, M, initial_norm_per_dim=per_dim)
        loss.warm_start(embeddings, labels)
        assert mean_scaled_norm(loss, embeddings) == pytest.approx(per_dim * M, rel=1e-5)
        spreads.append(loss.get_logits(embeddings).std(dim=1).mean().item())
    assert max(spreads) < 1.5 * min(spreads)


@pytest.mark.parametrize("joint", [False, True])
def test_scale_moves_to_the_head_and_the_loss_sees_the_same(joint):
    torch.manual_seed(0)
    features, labels = torch.randn(50, 8), torch.arange(50) % C
    head, loss = EmbeddingHead(8, M), NonIsotropicVMFLoss(C, M)
    if joint:
        loss = JointProxyLoss(loss, pml_losses.ProxyAnchorLoss(C, M), weight=1.0)
    loss.warm_start(head(features).detach(), labels)
    before = loss(head(features), labels)
    move_scale_to_head(loss, head)
    assert head(features).norm(dim=1).mean().item() == pytest.approx(4 * M, rel=1e-4)
    torch.testing.assert_close(loss(head(features), labels), before)
    fixed = NonIsotropicVMFLoss(C, M, embedding_scale=3.0)
    move_scale_to_head(fixed, head)
    assert float(fixed.embedding_scale) == 3.0
    move_scale_to_head(pml_losses.ProxyAnchorLoss(C, M), head)  # has none


# Warm start -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", ALL.values(), ids=ALL.keys())
def test_warm_start_points_proxies_at_class_means(make):
    torch.manual_seed(0)
    embeddings, labels = torch.randn(40, M), torch.arange(40) % C
    loss = make(C, M)
    lengths = loss.proxies.norm(dim=1)
    loss.warm_start(embeddings, labels)
    means = torch.stack([embeddings[labels == c].mean(0) for c in range(C)])
    torch.testing.assert_close(F.normalize(loss.proxies, dim=1), F.normalize(means, dim=1))
    torch.testing.assert_close(loss.proxies.norm(dim=1), lengths)


def test_warm_start_sets_the_scale_again_and_warns_about_missing_classes(batch):
    embeddings, labels = torch.randn(40, M), torch.arange(40) % 3
    loss = NonIsotropicVMFLoss(C, M)
    loss(100 * batch[0], batch[1])
    before = loss.proxies.detach().clone()
    with pytest.warns(UserWarning, match=r"2 classes have no sample or no mean and keep their proxies, first \[3, 4\]"):
        loss.warm_start(embeddings, labels)
    assert torch.equal(loss.proxies[3:], before[3:])
    assert not torch.equal(loss.proxies[:3], before[:3])
    assert mean_scaled_norm(loss, embeddings) == pytest.approx(4 * M, rel=1e-5)
    assert loss.proxies.requires_grad


def a_loader(features=8, size=50, batch_size=7, spread=1.0):
    torch.manual_seed(0)
    images, labels = spread * torch.randn(size, features), torch.arange(size) % C
    return images, labels, DataLoader(TensorDataset(images, labels), batch_size=batch_size)


def test_warm_start_from_a_model_and_a_loader():
    images, labels, loader = a_loader()
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Dropout(0.5), nn.Linear(32, M))
    model[1].eval()
    by_hand, by_loader = NonIsotropicVMFLoss(C, M), NonIsotropicVMFLoss(C, M)
    by_loader.load_state_dict(by_hand.state_dict())
    warm_start_from_loader(by_loader, model, loader)
    assert model.training
    assert model[3].training
    assert not model[1].training, "modes are restored module by module"
    model.eval()
    by_hand.warm_start(model(images).detach(), labels)
    torch.testing.assert_close(by_hand.state_dict(), by_loader.state_dict())
    with pytest.raises(ValueError, match="no batch"):
        warm_start_from_loader(by_loader, model, [])


def test_warm_start_of_pml_losses():
    images, labels, loader = a_loader()
    head, loss = nn.Linear(8, M), pml_losses.ProxyAnchorLoss(C, M)
    lengths = loss.proxies.norm(dim=1).detach()
    warm_start_from_loader(loss, head, loader)
    means = torch.stack([head(images[labels == c]).mean(0) for c in range(C)])
    torch.testing.assert_close(loss.proxies, F.normalize(means) * lengths.unsqueeze(1))
    with pytest.raises(ValueError, match="TripletMarginLoss has no class proxies"):
        warm_start_from_loader(pml_losses.TripletMarginLoss(), head, loader)


def test_warm_start_sees_the_embeddings_that_training_will_see():
    """With the initial statistics of a fresh batch norm, eval-mode embeddings would be 20 times too short here."""
    images, _, loader = a_loader(size=60, batch_size=60, spread=0.05)
    model = nn.Sequential(nn.Linear(8, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, M))
    loss = NonIsotropicVMFLoss(C, M)
    warm_start_from_loader(loss, model, loader)
    assert model[1].momentum == 0.1
    assert mean_scaled_norm(loss, model(images)) == pytest.approx(4 * M, rel=0.02)
    statistics = model[1].running_var.clone()
    warm_start_from_loader(loss, model, loader)
    assert torch.equal(model[1].running_var, statistics), "statistics that are there are not touched"
