"""Concentrations shared by all classes plus deviations that a penalty draws to zero."""

import pytest
import torch
from pytorch_metric_learning import distances as pml_distances
from pytorch_metric_learning import losses as pml_losses
from pytorch_metric_learning import reducers, regularizers
from torch import nn

from pml_nivmf.losses import JointProxyLoss, NivMFProxyLoss, NonIsotropicVMFLoss, VMFProxyLoss

C, M, B = 5, 16, 12
LOSSES = {
    "EL-nivMF": lambda *a, **k: NonIsotropicVMFLoss(*a, estimator="analytic", **k),
    "nivMF": NivMFProxyLoss,
    "EL-vMF": VMFProxyLoss,
}
each = pytest.mark.parametrize("make", LOSSES.values(), ids=LOSSES.keys())
DEVIATING = {"concentration": "shared_plus_deviation"}


@pytest.fixture
def batch():
    torch.manual_seed(0)
    return torch.randn(B, M, requires_grad=True), torch.randint(0, C, (B,))


def deviated(loss, size=0.3):
    """The loss with deviations that are not zero."""
    with torch.no_grad():
        loss.log_concentration_deviation.normal_(std=size, generator=torch.Generator().manual_seed(1))
    return loss


@each
def test_shared_plus_deviation_is_the_loss_with_the_sum_as_concentrations(make, batch):
    ours = deviated(make(C, M, **DEVIATING, concentration_reg_weight=0.0))
    per_class = make(C, M)
    with torch.no_grad():
        per_class.proxies.copy_(ours.proxies)
        per_class.log_concentration.copy_(ours.log_concentration + ours.log_concentration_deviation)
    torch.testing.assert_close(ours.concentration, per_class.concentration)
    torch.testing.assert_close(ours(*batch), per_class(*batch))
    torch.testing.assert_close(ours.get_logits(batch[0]), per_class.get_logits(batch[0]))
    for loss in (ours, per_class):
        loss(*batch).backward()
    torch.testing.assert_close(ours.log_concentration_deviation.grad, per_class.log_concentration.grad)
    torch.testing.assert_close(ours.log_concentration.grad, per_class.log_concentration.grad.sum(0, keepdim=True))


@each
def test_deviations_start_at_zero_and_the_start_is_that_of_the_shared_form(make, batch):
    torch.manual_seed(1)
    ours = make(C, M, **DEVIATING)
    torch.manual_seed(1)
    shared = make(C, M, concentration="shared")
    assert not ours.log_concentration_deviation.any()
    assert len(ours.log_concentration_deviation) == C
    assert torch.equal(ours.log_concentration, shared.log_concentration)
    torch.testing.assert_close(ours(*batch), shared(*batch))


@each
@pytest.mark.parametrize("chunk_size", [None, 2])
def test_the_penalty_is_added(make, chunk_size, batch):
    free = deviated(make(C, M, **DEVIATING, concentration_reg_weight=0, chunk_size=chunk_size))
    for regularizer, penalty in (
        (None, lambda deviation: deviation.square().mean()),
        (regularizers.LpRegularizer(power=2), lambda deviation: deviation.square().sum(1).mean()),
        (regularizers.LpRegularizer(p=1), lambda deviation: deviation.abs().sum(1).mean()),
    ):
        options = {"concentration_regularizer": regularizer, "concentration_reg_weight": 0.7}
        loss = make(C, M, **DEVIATING, **options, chunk_size=chunk_size)
        loss.load_state_dict(free.state_dict())
        torch.testing.assert_close(loss(*batch), free(*batch) + 0.7 * penalty(free.log_concentration_deviation))


@each
def test_it_is_a_sub_loss_of_its_own_beside_pmls(make, batch):
    options = {
        "weight_regularizer": regularizers.LpRegularizer(),
        "embedding_regularizer": regularizers.LpRegularizer(),
    }
    loss = deviated(make(C, M, reducer=reducers.DoNothingReducer(), **DEVIATING, **options))
    parts = loss(*batch)
    names = {"loss", "concentration_reg_loss", "weight_reg_loss", "embedding_reg_loss"}
    assert set(parts) == set(loss.sub_loss_names()) == names
    assert parts["concentration_reg_loss"]["reduction_type"] == "already_reduced"
    assert make(C, M).sub_loss_names() == ["loss"]
    total = deviated(make(C, M, **DEVIATING, **options))
    total.load_state_dict(loss.state_dict())
    expected = sum(part["losses"].mean() for part in parts.values())
    torch.testing.assert_close(total(*batch), expected)


@pytest.mark.parametrize("regularizer", [None, regularizers.LpRegularizer(), regularizers.ZeroMeanRegularizer()])
def test_gradients_are_finite_at_zero_deviation(regularizer, batch):
    loss = NonIsotropicVMFLoss(C, M, **DEVIATING, concentration_regularizer=regularizer)
    loss(*batch).backward()
    assert torch.isfinite(loss.log_concentration_deviation.grad).all()


def _mean_deviation_after_training(weight):
    torch.manual_seed(0)
    labels = torch.arange(C).repeat(8)
    embeddings = torch.randn(C, M)[labels] + torch.randn(len(labels), M)
    loss = NonIsotropicVMFLoss(C, M, estimator="analytic", **DEVIATING, concentration_reg_weight=weight)
    optimizer = torch.optim.SGD(loss.param_groups(1.0, proxy_lr=0.1))
    for _ in range(50):
        optimizer.zero_grad()
        loss(embeddings, labels).backward()
        optimizer.step()
    return loss.log_concentration_deviation.abs().mean().item()


def test_a_heavier_penalty_keeps_deviations_smaller():
    free, light, heavy = (_mean_deviation_after_training(weight) for weight in (0.0, 1.0, 20.0))
    assert 0 < heavy < 0.5 * light < 0.5 * free


def test_param_groups_give_the_deviations_a_rate():
    loss = NonIsotropicVMFLoss(C, M, **DEVIATING)
    groups = {group["name"]: group for group in loss.param_groups(1e-3, concentration_lr=0.25)}
    assert groups["log_concentration"]["lr"] == groups["log_concentration_deviation"]["lr"] == 0.25
    groups = {group["name"]: group for group in loss.param_groups(1e-3, deviation_lr=0.5)}
    assert groups["log_concentration"]["lr"] == 1e-3
    assert groups["log_concentration_deviation"] == {
        "params": [loss.log_concentration_deviation],
        "name": "log_concentration_deviation",
        "lr": 0.5,
        "weight_decay": 0.0,
    }


def test_state_and_warm_start(batch):
    loss = deviated(NonIsotropicVMFLoss(C, M, **DEVIATING))
    before = loss.concentration.detach().clone()
    loss.warm_start(batch[0], torch.arange(B) % C)
    assert torch.equal(loss.concentration, before)
    other = NonIsotropicVMFLoss(C, M, **DEVIATING)
    other.load_state_dict(loss.state_dict())
    assert torch.equal(other.concentration, before)
    assert torch.equal(other.embedding_scale, loss.embedding_scale)


def test_the_joint_loss_carries_it(batch):
    def joint(weight):
        torch.manual_seed(2)
        probabilistic = LOSSES["EL-nivMF"](C, M, **DEVIATING, concentration_reg_weight=weight)
        return JointProxyLoss(deviated(probabilistic), pml_losses.ProxyAnchorLoss(C, M))

    penalty = joint(0.0).probabilistic.log_concentration_deviation.square().mean()
    torch.testing.assert_close(joint(2.0)(*batch), joint(0.0)(*batch) + 2 * penalty)
    assert "log_concentration_deviation" in {group["name"] for group in joint(1.0).param_groups(1e-3)}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes(dtype, batch):
    loss = deviated(NonIsotropicVMFLoss(C, M, **DEVIATING))
    value = loss(batch[0].to(dtype), batch[1])
    value.backward()
    assert torch.isfinite(value)
    assert value.dtype == torch.promote_types(dtype, torch.float32)
    assert {parameter.dtype for parameter in loss.parameters()} == {torch.float32}


def test_bad_options_are_named():
    with pytest.raises(ValueError, match='concentration_regularizer needs concentration="shared_plus_deviation"'):
        NonIsotropicVMFLoss(C, M, concentration_regularizer=regularizers.LpRegularizer())
    for weight in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"concentration_reg_weight must be a number of at least 0, got {weight}"):
            NonIsotropicVMFLoss(C, M, **DEVIATING, concentration_reg_weight=weight)
    with pytest.raises(ValueError, match="concentration has no meaning here: CosineSimilarity normalises"):
        VMFProxyLoss(C, M, distance=pml_distances.CosineSimilarity(), **DEVIATING)


def test_the_regularizer_is_a_module_of_the_loss():
    regularizer = regularizers.LpRegularizer()
    loss = NonIsotropicVMFLoss(C, M, **DEVIATING, concentration_regularizer=regularizer)
    assert regularizer in list(loss.modules())
    assert isinstance(NonIsotropicVMFLoss(C, M, **DEVIATING).concentration_regularizer, nn.Module)
