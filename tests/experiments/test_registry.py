"""From names in a configuration to objects: what can be named, nested objects, and what is refused before a run."""

import pytest
import torch
from pytorch_metric_learning.regularizers import LpRegularizer
from torch import nn

from pml_nivmf.experiments import registry
from pml_nivmf.experiments.build import check_trunk
from pml_nivmf.experiments.config import ConfigError
from pml_nivmf.losses import NonIsotropicVMFLoss, SampledSoftmax
from pml_nivmf.models import ConvNet


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(registry, "_KINDS", {kind: dict(names) for kind, names in registry._KINDS.items()})


def build_loss(config):
    return registry.build("loss", config, "loss", num_classes=4, embedding_size=8)


def test_nested_objects_are_built_and_receive_what_is_injected():
    ours = {"concentration": "shared_plus_deviation", "concentration_regularizer": {"LpRegularizer": {"p": 1}}}
    ours |= {"softmax": {"SampledSoftmax": {"n_negatives": 2}}, "distance": {"NivMFDistance": None}}
    joint = {"probabilistic": {"NonIsotropicVMFLoss": ours}, "guidance": {"ProxyAnchorLoss": {"alpha": 8}}}
    loss = build_loss({"MultipleLosses": {"losses": [{"JointProxyLoss": joint}, {"ProxyNCALoss": {}}]}})
    assert [type(inner).__name__ for inner in loss.losses] == ["JointProxyLoss", "ProxyNCALoss"]
    probabilistic = loss.losses[0].probabilistic
    assert isinstance(probabilistic, NonIsotropicVMFLoss)
    assert isinstance(probabilistic.concentration_regularizer, LpRegularizer)
    assert isinstance(probabilistic.softmax, SampledSoftmax)
    assert loss.losses[0].guidance.proxies.shape == loss.losses[1].proxies.shape == (4, 8)
    loss(torch.randn(6, 8), torch.arange(6) % 4).backward()


@pytest.mark.parametrize(
    ("kind", "config", "message"),
    [
        ("loss", {"ProxyAnchorLos": {}}, "loss: unknown loss 'ProxyAnchorLos': did you mean 'ProxyAnchorLoss'"),
        ("loss", {"os.system": {"command": "ls"}}, "unknown loss 'os.system'"),
        ("loss", {"BaseMetricLossFunction": {}}, "unknown loss"),
        ("loss", {"ProxyLoss": {}}, "unknown loss"),
        ("loss", {"FullSoftmax": {}}, "unknown loss"),
        ("loss", {"SelfSupervisedLoss": {"loss": {"NTXentLoss": {}}}}, "unknown loss"),
        ("dataset", {"LabelledItems": {}}, "unknown dataset"),
        ("optimizer", {"Optimizer": {"lr": 1}}, "unknown optimizer"),
        ("scheduler", {"Counter": {}}, "unknown scheduler"),
        ("loss", {"ProxyAnchorLoss": {"alfa": 3}}, "ProxyAnchorLoss has no argument 'alfa': did you mean 'alpha'"),
        ("loss", {"ProxyAnchorLoss": {"num_classes": 3}}, "the data and the model decide this: leave it out"),
        ("loss", {"VMFProxyLoss": {"distance": {"KLDistanc": {}}}}, "VMFProxyLoss.distance: unknown distance 'KLD"),
        ("loss", {"VMFProxyLoss": {"distance": "KLDistance"}}, "loss.VMFProxyLoss.distance must name one distance"),
        ("loss", {"MultipleLosses": {"losses": [{"NPairLoss": {}}]}}, r"losses\[0\]: unknown loss 'NPairLoss'"),
        ("loss", {}, "loss must name one loss, {ClassName: {…}}, got {}"),
        ("loss", {"CosFaceLoss": {}, "ArcFaceLoss": {}}, "loss must name one loss"),
        ("dataset", {"ImageFolder": {}, "skip_bad": True}, r"did you mean dataset\.ImageFolder\.skip_bad\?"),
        ("loss", {"ProxyAnchorLoss": 3}, "loss.ProxyAnchorLoss: arguments must be a mapping, got 3"),
    ],
)
def test_what_cannot_be_built_is_refused_by_the_check(kind, config, message):
    with pytest.raises(ConfigError, match=message):
        registry.check(kind, config, kind)


def test_keyword_arguments_of_a_library_are_allowed():
    registry.check("trunk", {"TimmTrunk": {"name": "resnet10t", "drop_rate": 0.1}}, "trunk")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"NonIsotropicVMFLoss": {"temperature": -1}}, "loss.NonIsotropicVMFLoss: temperature must be a positive"),
        ({"CrossBatchMemory": {}}, "loss.CrossBatchMemory: .*missing 1 required positional argument: 'loss'"),
        ({"CrossBatchMemory": {"loss": {"ProxyNCALoss": {}}}}, "CrossBatchMemory not supported for ProxyNCALoss"),
    ],
)
def test_errors_of_constructors_name_the_object(config, message):
    with pytest.raises(ConfigError, match=message):
        build_loss(config)


def test_what_a_plugin_builds_must_be_of_its_kind(tmp_path):
    plugin = "from pml_nivmf.experiments.registry import register\nregister('loss', lambda: 'text', 'Text')\n"
    (tmp_path / "mine.py").write_text(plugin)
    registry.load_plugins([str(tmp_path / "mine.py")])
    with pytest.raises(ConfigError, match="a loss must be a Module, got a str"):
        build_loss({"Text": {}})
    with pytest.raises(ConfigError, match="unknown kind 'los': did you mean 'loss'"):
        registry.register("los", nn.Linear)
    with pytest.raises(ConfigError, match="must begin with a capital letter, got 'linear'"):
        registry.register("loss", nn.Linear, "linear")


def test_a_trunk_is_tried_without_changing_its_state():
    trunk = ConvNet(in_channels=1)
    before = {name: value.clone() for name, value in trunk.state_dict().items()}
    check_trunk(trunk, "ConvNet", (1, 32, 32))
    assert trunk.training
    assert all(torch.equal(value, before[name]) for name, value in trunk.state_dict().items())


@pytest.mark.parametrize(
    ("trunk", "shape", "message"),
    [
        (lambda: ConvNet(in_channels=1, depth=9), (1, 32, 32), r"ConvNet cannot take items of shape \(1, 32, 32\): "),
        (lambda: ConvNet(in_channels=8), (8,), r"items of shape \(8,\) \(for feature vectors use model=features\)"),
    ],
)
def test_a_trunk_that_does_not_fit_the_data(trunk, shape, message):
    built = trunk()
    with pytest.raises(ConfigError, match=message):
        check_trunk(built, type(built).__name__, shape)
