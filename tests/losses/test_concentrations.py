"""Concentrations shared by all classes plus deviations that a penalty draws to zero."""

import pytest
import torch
from pytorch_metric_learning import distances as pml_distances
from pytorch_metric_learning import reducers, regularizers

from pml_nivmf.losses import NivMFProxyLoss, NonIsotropicVMFLoss, VMFProxyLoss

from ..distances import variants

C, M, B = 5, 16, 12
LOSSES = {
    "EL-nivMF": NonIsotropicVMFLoss,
    "nivMF": NivMFProxyLoss,
    "EL-vMF": VMFProxyLoss,
}
each = variants.each(LOSSES)
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
def test_the_penalty_is_added(make, batch):
    free = deviated(make(C, M, **DEVIATING, concentration_reg_weight=0))
    for regularizer, penalty in (
        (None, lambda deviation: deviation.square().mean()),
        (regularizers.LpRegularizer(power=2), lambda deviation: deviation.square().sum(1).mean()),
        (regularizers.LpRegularizer(p=1), lambda deviation: deviation.abs().sum(1).mean()),
    ):
        options = {"concentration_regularizer": regularizer, "concentration_reg_weight": 0.7}
        loss = make(C, M, **DEVIATING, **options)
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


def test_shared_concentrations_are_one_row():
    for make, width in ((NonIsotropicVMFLoss, M), (VMFProxyLoss, 1)):
        assert make(C, M).log_concentration.shape == (C, width)
        shared = make(C, M, concentration="shared")
        assert shared.log_concentration.shape == (1, width)
        assert shared.concentration.shape == (C, width)
        deviating = make(C, M, **DEVIATING)
        assert torch.equal(deviating.concentration, shared.concentration), "deviations start at zero"


@pytest.mark.parametrize("options", [{}, {"concentration": "shared"}, DEVIATING])
@each
def test_softplus_has_the_values_and_slopes_of_its_positive_parameters(make, options, batch):
    options = options | {"initial_concentration": 18.0, "temperature": 0.5}
    by_log, by_softplus = make(C, M, **options), make(C, M, parametrization="softplus", **options)
    with torch.no_grad():
        by_softplus.proxies.copy_(by_log.proxies)
    for loss in (by_log, by_softplus):
        loss(*batch).backward()
    torch.testing.assert_close(by_softplus(*batch), by_log(*batch))
    for name, value in (("concentration", 18.0), ("temperature", 0.5)):
        assert torch.equal(getattr(by_softplus, name), torch.full_like(getattr(by_softplus, name), value))
        slopes = [getattr(loss, f"{kind}_{name}").grad for loss, kind in ((by_softplus, "softplus"), (by_log, "log"))]
        torch.testing.assert_close(value * slopes[0], slopes[1], rtol=1e-4, atol=1e-6)


def test_softplus_stays_positive_and_finite(batch):
    loss = NonIsotropicVMFLoss(C, M, parametrization="softplus", initial_concentration=18.0)
    with torch.no_grad():
        loss.softplus_concentration[:, :4] = -60.0
        loss.softplus_concentration[:, 4:8] = -10.0
    assert (loss.concentration > 0).all()
    loss(*batch).backward()
    assert all(parameter.grad.isfinite().all() for parameter in loss.parameters())
    assert {"softplus_concentration", "softplus_temperature"} <= set(loss.state_dict())


def test_bad_options_are_named():
    with pytest.raises(ValueError, match="concentration_regularizer needs shared_plus_deviation, got 'per_class'"):
        NonIsotropicVMFLoss(C, M, concentration_regularizer=regularizers.LpRegularizer())
    with pytest.raises(ValueError, match="concentration_reg_weight must be at least 0, got -1"):
        NonIsotropicVMFLoss(C, M, **DEVIATING, concentration_reg_weight=-1)
    with pytest.raises(ValueError, match="CosineSimilarity normalises the proxies"):
        VMFProxyLoss(C, M, distance=pml_distances.CosineSimilarity(), **DEVIATING)
