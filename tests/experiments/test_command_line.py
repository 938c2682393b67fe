"""The command line: overrides, plugins, and bad configurations, which fail before any training."""

import pytest
from omegaconf import OmegaConf

from pml_nivmf import cli
from pml_nivmf.experiments import registry


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("loss={ProxyAnchorLos: {}}", "loss: unknown loss 'ProxyAnchorLos': did you mean"),
        ("loss={ProxyAnchorLoss: {alfa: 3}}", "ProxyAnchorLoss has no argument 'alfa': did you mean 'alpha'"),
        ("loss={NonIsotropicVMFLoss: {temperature: -1}}", "temperature must be a positive number, got -1"),
        ("loss~OVERRIDE~={os.system: {command: ls}}", "unknown loss 'os.system'"),
        ("evaluation.select=accuracy", "evaluation.select: 'accuracy' is not computed"),
        ("evaluation.metrics=[recal_at_1]", "evaluation: Primary metrics must be one or more of: "),
        ("evaluation.retrieval=cosin", "retrieval must be one of cosine, l2, got 'cosin'"),
        ("general.device=warp", "general.device: torch cannot use 'warp' here"),
        ("optimizers.model~OVERRIDE~={Adam: {}}", "lr is missing"),
        ("general.batch_size=100000", "batch_size is 100000, and there are "),
        ("sampler.MPerClassSampler.m=3", "m_per_class must divide batch_size without any remainder (general.batch"),
        ("dataset={FeatureArrays: {npz: nowhere.npz}}", "nowhere.npz"),
        ("model=conv_net", "model.trunk: ConvNet cannot take items of shape (4,)"),
        ("loss={CrossBatchMemory: {loss: {ProxyNCALoss: {}}}}", "CrossBatchMemory not supported for ProxyNCALoss"),
    ],
)
def test_bad_configurations_fail_before_any_training(experiment, tmp_path, override, message, capsys):
    folder = tmp_path / "run"
    assert cli.main(["run", experiment, override, f"general.run_dir={folder}"]) == 2
    assert message in capsys.readouterr().err
    assert not folder.exists()


def test_plugin(experiment, tmp_path, capsys):
    plugin = tmp_path / "my_loss.py"
    plugin.write_text(
        "from pytorch_metric_learning.losses import ProxyAnchorLoss\n"
        "from pml_nivmf.experiments.registry import register\n"
        "class MyLoss(ProxyAnchorLoss):\n"
        "    def forward(self, *args):\n"
        "        raise ValueError('my mistake')\n"
        'register("loss", MyLoss)\n'
    )
    options = ["loss={MyLoss: {alpha: 8}}", "general.epochs=1", f"general.run_dir={tmp_path / 'r'}"]
    arguments = ["run", experiment, *options]
    assert cli.main(arguments) == 2
    assert "unknown loss 'MyLoss'" in capsys.readouterr().err
    try:
        assert cli.main([*arguments, "--plugin", str(plugin)]) == 2
        error = capsys.readouterr().err
        assert "pml-nivmf: my mistake" in error
        assert "Traceback" not in error
        assert cli.main([*arguments, "--plugin", str(plugin), "--overwrite", "--debug"]) == 2
        assert "in forward" in capsys.readouterr().err
    finally:
        registry._KINDS["loss"].pop("MyLoss")


def test_plugin_that_cannot_be_loaded(experiment, tmp_path, capsys):
    plugin = tmp_path / "broken.py"
    plugin.write_text("import no_such_module\n")
    assert cli.main(["run", experiment, "--plugin", str(plugin)]) == 2
    assert f"{plugin} cannot be imported: No module named 'no_such_module'" in capsys.readouterr().err
    assert cli.main(["run", experiment, "--plugin", experiment]) == 2
    assert f"the plugin {experiment} cannot be imported" in capsys.readouterr().err


def test_command_line(experiment, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cli.main(["run", experiment, "--dry-run", "general.epochs=9"]) == 0, "overrides may follow options"
    assert OmegaConf.create(capsys.readouterr().out).general.epochs == 9
    assert cli.main(["run", experiment, "general.epochs=1", "general.run_dir=~/run"]) == 0
    assert (tmp_path / "run" / "summary.json").exists()
    assert "test recall_at_1 " in capsys.readouterr().out
    assert cli.main(["list"]) == 0
    listing = capsys.readouterr().out
    assert "glyphs" in listing
    assert "el_nivmf" in listing
    assert cli.main(["run"]) == 2
    assert cli.main(["run", "glyphs", "--resume", str(tmp_path)]) == 2
    with pytest.raises(SystemExit):
        cli.main(["run", experiment, "--dry-run", "--no-such-option"])
