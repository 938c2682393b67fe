"""Parts that do not fit are refused before a run begins."""

import pytest
import torch
from torch import nn

from pml_nivmf import cli
from pml_nivmf.experiments import registry
from pml_nivmf.experiments.errors import ConfigError
from pml_nivmf.experiments.fit import check_trunk, check_type
from pml_nivmf.models import ConvNet


class Trunk(nn.Module):
    """A plugin's, which says one width and gives another."""

    def __init__(self, num_features, gives=5):
        super().__init__()
        self.num_features, self.gives = num_features, gives

    def forward(self, items):
        return items.flatten(1)[:, : self.gives]


def test_a_trunk_is_tried_without_a_trace():
    trunk = ConvNet(in_channels=1)
    before = {name: value.clone() for name, value in trunk.state_dict().items()}
    generator = torch.get_rng_state()
    check_trunk(trunk, "ConvNet", (1, 32, 32))
    assert trunk.training
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(value, before[name]) for name, value in trunk.state_dict().items())
    check_trunk(Trunk(5), "Trunk", (8,))


@pytest.mark.parametrize(
    ("trunk", "shape", "message"),
    [
        (lambda: ConvNet(in_channels=1, depth=9), (1, 32, 32), r"ConvNet cannot take an item of shape \(1, 32, 32\): "),
        (lambda: ConvNet(in_channels=3), (1, 32, 32), r"ConvNet cannot take an item of shape \(1, 32, 32\): "),
        (lambda: Trunk(7), (8,), r"gives features of shape \(1, 5\) for one item of shape \(8,\), expected \(1, 7\)"),
        (lambda: Trunk(None), (8,), "must tell the width of its features: an int attribute num_features, got None"),
    ],
)
def test_a_trunk_that_does_not_fit(trunk, shape, message):
    built = trunk()
    with pytest.raises(ConfigError, match=message):
        check_trunk(built, type(built).__name__, shape)


def test_what_a_plugin_makes_must_be_of_its_kind(experiment, tmp_path, monkeypatch, capsys):
    assert check_type("miner", 3, "miner") == 3, "PML's are many"
    monkeypatch.setitem(registry._KINDS["loss"], "Text", lambda: "no loss")
    folder = tmp_path / "run"
    assert cli.main(["run", experiment, "loss={Text: {}}", f"general.run_dir={folder}"]) == 2
    assert "loss: a loss must be a Module, got a str" in capsys.readouterr().err
    assert not folder.exists()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("schedule.scheduler={StepLR: {}}", "command line: schedule.scheduler.StepLR needs step_size"),
        ("loss={CrossBatchMemory: {}}", "command line: loss.CrossBatchMemory needs loss"),
        ("loss~DELETE~", "loss is empty: name a loss, {ClassName: {…}}"),
        ("optimizers.model~DELETE~", "optimizers.model is empty: name an optimizer, {ClassName: {…}}"),
        ("model.trunk~DELETE~", "model.trunk is empty: name a trunk, {ClassName: {…}}"),
    ],
)
def test_what_is_missing_is_told_by_a_dry_run(experiment, override, message, capsys):
    assert cli.main(["run", experiment, override, "--dry-run"]) == 2
    assert message in capsys.readouterr().err
