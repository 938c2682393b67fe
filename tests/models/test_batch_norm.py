"""Frozen batch norm keeps its statistics through train(), copies and pickles."""

import copy
import pickle

import pytest
import torch
from torch import nn

from pml_nivmf.models import ConvNet, TimmTrunk, freeze_batch_norm

X = torch.rand(8, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def net():
    torch.manual_seed(0)
    model = nn.Sequential(ConvNet(width=4, depth=2), nn.Linear(8, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    for _ in range(3):  # statistics other than the initial ones
        model(X)
    return model


def layers(model):
    return [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]


@pytest.mark.parametrize(
    "change", [lambda model: model, copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))]
)
def test_statistics_do_not_change_in_training(change):
    model = change(freeze_batch_norm(freeze_batch_norm(net()))).train()  # freezing again changes nothing
    before = copy.deepcopy(model.state_dict())
    assert model.training
    assert model[3].training, "only batch norm is frozen"
    for layer in layers(model):
        assert layer.train() is layer  # of this copy
        assert not layer.training
    model(X).sum().backward()
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(p.grad is not None for layer in layers(model) for p in layer.parameters())
    without_dropout = model[:3]
    torch.testing.assert_close(without_dropout.train()(X), without_dropout.eval()(X))


def test_timm_layers_and_single_layers():
    trunk = freeze_batch_norm(TimmTrunk("test_efficientnet", pretrained=False)).train()  # BatchNormAct2d
    assert len(layers(trunk)) > 3
    assert not any(layer.training for layer in layers(trunk))
    assert not freeze_batch_norm(nn.BatchNorm1d(3)).train().training


def test_layers_without_statistics():
    with pytest.raises(ValueError, match=r"1 has no running statistics"):
        freeze_batch_norm(nn.Sequential(nn.ReLU(), nn.BatchNorm1d(3, track_running_stats=False)))
