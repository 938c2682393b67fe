"""Frozen batch norm keeps its statistics through train(), copies and pickles."""

import copy
import io

import pytest
import torch
from torch import nn

from pml_nivmf.models import ConvNet, TimmTrunk, freeze_batch_norm


def net():
    torch.manual_seed(0)
    model = nn.Sequential(ConvNet(width=4, depth=2), nn.Linear(8, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    for _ in range(3):  # statistics that are not the initial ones
        model(torch.rand(8, 1, 8, 8))
    return model


def layers(model):
    return [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]


def statistics(model):
    return [value.clone() for layer in layers(model) for value in layer.buffers()]


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def copied(model):
    return copy.deepcopy(model)


def pickled(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("change", [lambda model: model, copied, pickled], ids=["itself", "copy", "pickle"])
def test_statistics_stay(change):
    model = change(freeze_batch_norm(net()))
    before = statistics(model)
    assert len(layers(model)) == 3
    assert model.train() is model
    assert model.training
    assert model[3].training, "only batch norm is frozen"
    assert not any(layer.training for layer in layers(model))
    model(torch.rand(8, 1, 8, 8))
    assert same(before, statistics(model))
    for layer in layers(model):
        assert layer.train() is layer
        assert not layer.training


def test_a_copy_freezes_its_own_layers():
    model = freeze_batch_norm(net())
    twin = copied(model)
    for layer in layers(twin):
        assert layer.train() is layer


def test_unfrozen_statistics_do_move():
    model = net().train()
    before = statistics(model)
    model(torch.rand(8, 1, 8, 8))
    assert not same(before, statistics(model))


def test_outputs_in_training_are_those_of_evaluation():
    model = freeze_batch_norm(net())[0]  # without dropout
    x = torch.rand(4, 1, 8, 8)
    torch.testing.assert_close(model.train()(x), model.eval()(x))


def test_affine_parameters_train_unless_frozen_too():
    x = torch.rand(4, 1, 8, 8)
    model = freeze_batch_norm(net()).train()
    model(x).sum().backward()
    assert all(layer.weight.grad is not None for layer in layers(model))
    model = freeze_batch_norm(net(), freeze_affine=True).train()
    model(x).sum().backward()
    assert all(not p.requires_grad and p.grad is None for layer in layers(model) for p in layer.parameters())
    assert model[1].weight.grad is not None


def test_freezing_again_changes_nothing():
    model = freeze_batch_norm(freeze_batch_norm(net())).train()
    assert not any(layer.training for layer in layers(model))


def test_timm_layers_and_single_layers():
    trunk = freeze_batch_norm(TimmTrunk("test_efficientnet", pretrained=False)).train()  # BatchNormAct2d
    assert len(layers(trunk)) > 3
    assert not any(layer.training for layer in layers(trunk))
    assert not freeze_batch_norm(nn.BatchNorm1d(3)).train().training


def test_layers_without_statistics_are_refused():
    with pytest.raises(ValueError, match=r"1 has no running statistics to freeze"):
        freeze_batch_norm(nn.Sequential(nn.ReLU(), nn.BatchNorm1d(3, track_running_stats=False)))
