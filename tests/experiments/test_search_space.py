"""The `sweep` section: which values each loss may take, and what is refused before any training."""

import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from pml_nivmf import cli
from pml_nivmf.experiments import search_space

from .sweeps import SWEEP


def test_each_loss_has_its_space(write):
    own = """
  losses:
    el_vmf:
      general.epochs: null
      optimizers.proxy_lr: {uniform: [0.1, 0.2]}
      loss.VMFProxyLoss.temperature: {choice: [1, 0.5]}
"""
    anchor, vmf = search_space.plan(write(SWEEP + own), [], [])
    common = ["optimizers.proxy_lr", "general.epochs", "schedule"]
    assert list(anchor.space) == [*common, "loss.ProxyAnchorLoss.alpha"]
    assert list(vmf.space.items()) == [
        ("optimizers.proxy_lr", ("uniform", [0.1, 0.2])),
        ("schedule", ("choice", ['"default"', '"cosine"'])),
        ("loss.VMFProxyLoss.temperature", ("choice", ["1", "0.5"])),
    ]
    assert (anchor.study, anchor.trials) == ("tiny/proxy_anchor", 6)


def test_a_space_can_stand_in_the_place_of_a_value(write, capsys):
    """In the experiment, under per_loss and on the command line, also without a sweep section."""
    in_place = """
optimizers: {model: {Adam: {lr~SEARCH~: {log_uniform: [1e-4, 1e-2]}}}, proxy_lr: 0.3}
per_loss: {proxy_anchor: {loss: {ProxyAnchorLoss: {alpha~SEARCH~: {choice: [16, 32]}}}}}
"""
    rate = ("log_uniform", [1e-4, 1e-2])
    anchor, vmf = search_space.plan(write(in_place), [], ["optimizers.proxy_lr~SEARCH~={uniform: [0.1, 1]}"])
    shared = {"optimizers.model.Adam.lr": rate, "optimizers.proxy_lr": ("uniform", [0.1, 1])}
    assert anchor.space == shared | {"loss.ProxyAnchorLoss.alpha": ("choice", ["16", "32"])}
    assert vmf.space == shared
    params = {"optimizers.model.Adam.lr": 5e-3, "optimizers.proxy_lr": 0.2, "loss.ProxyAnchorLoss.alpha": 16}
    config = anchor.job(Path("sweep"), 0, params, seed=0).config
    assert {key: OmegaConf.select(config, key) for key in params} == params
    (fixed,) = search_space.plan(write(in_place), ["el_vmf"], ["optimizers.proxy_lr=0.5"])
    assert list(fixed.space) == ["optimizers.model.Adam.lr"]
    for command in ("run", "compare"):
        assert cli.main([command, write(in_place)]) == 2
        assert " is searched: choose a value, or use `pml-nivmf sweep`" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"evaluation\.select_on is test: search with validation, and set this under"):
        search_space.plan(write(in_place), [], ["evaluation.select_on=test"])
    with pytest.raises(ValueError, match=r"lr: expected \{KIND: \[…\]\}, got \[1, 2\]"):
        search_space.plan(write("optimizers: {model: {Adam: {lr~SEARCH~: [1, 2]}}}"), [], [])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  trials: 6", "  reproduce: {general.epoch: 3}", "unknown key 'general.epoch'"),
        ("trials: 6", "trails: 6", "sweep.trails: Key 'trails' not in 'SweepSection'. Did you mean: 'trials'"),
        ("trials: 6", "sampler: random", "sweep.sampler: Invalid value 'random', expected one of ['tpe', 'grid']"),
        ("trials: 6", "sampler: grid", "optimizers.proxy_lr: expected {KIND: […]}, got {'log_uniform'"),
        ("{log_uniform: [0.001, 1.0]}", "{log_unifrom: [0.001, 1.0]}", "did you mean 'log_uniform'"),
        ("{log_uniform: [0.001, 1.0]}", "{log_uniform: [0, 1.0]}", "`low > 0` must hold for `log=True`"),
        ("{log_uniform: [0.001, 1.0]}", "{uniform: [1]}", "missing 1 required positional argument: 'high'"),
        (
            "{log_uniform: [0.001, 1.0]}",
            "[0.001, 1.0]",
            "space.optimizers.proxy_lr: 'ListConfig' is incompatible",
        ),
        ("{int: [1, 3]}", "{int: [1.5, 3]}", "The value 1.5 of the parameter 'general.epochs' is out of the range"),
        ("{int: [1, 3]}", "{int: [-1, 3]}", "general.epochs must be at least 1, got -1"),
        ("[default, cosine]", "[]", "schedule: expected {KIND: […]}, got {'choice': []}"),
        ("[default, cosine]", "[default, cosin]", "unknown schedule 'cosin': did you mean 'cosine'"),
        ("optimizers.proxy_lr", "optimizers.proxi_lr", "'optimizers.proxi_lr': did you mean 'proxy_lr'"),
        ("ProxyAnchorLoss.alpha", "ProxyAnchorLoss.alfa", "has no argument 'alfa': did you mean 'alpha'"),
        ("ProxyAnchorLoss.alpha", "ProxyAnchorLos.alpha", "did you mean 'ProxyAnchorLoss'"),
        ("loss.ProxyAnchorLoss.alpha: {uniform: [8, 64]}", "loss: {choice: [cos, l2]}", "choose losses with --losses"),
        ("  trials: 6", "  losses: {el_vfm: {}}", "unknown loss 'el_vfm': did you mean 'el_vmf'"),
        ("  trials: 6", "  losses: {el_vmf: {loss.ProxyNCALoss.x: {int: [1, 2]}}}", "sweep.losses.el_vmf: loss.Prox"),
        ("  trials: 6", "  start: {general.epoch: 3}", "sweep.start: 'general.epoch' is not searched: did you mean"),
        ("  trials: 6", "  start: {general.epochs: 9}", "The value 9 of the parameter 'general.epochs' is out of"),
        ("  trials: 6", "  start: {schedule: step}", "step"),
        (SWEEP, "", "sweep of proxy_anchor: there is no parameter: add some under space or losses, or a key~SEARCH~"),
        (SWEEP, "sweep: 3", "sweep: Merge error: int is not a subclass"),
        (SWEEP, "sweep: {space: {}}", "sweep of proxy_anchor: there is no parameter"),
    ],
)
def test_wrong_sections_are_refused(write, old, new, message):
    assert old in SWEEP
    with pytest.raises(ValueError, match=re.escape(message)):
        search_space.plan(write(SWEEP.replace(old, new)), [], [])


@pytest.mark.parametrize(
    ("losses", "overrides", "message"),
    [
        (["el_vfm"], [], "unknown loss 'el_vfm': did you mean 'el_vmf'"),
        (["cos", "cos"], [], "two losses have the same name: cos, cos"),
        ([], ["optimizers.proxy_lr=1"], "optimizers.proxy_lr is set by the sweep"),
        ([], ["general.run_dir=x"], "choose that of several with --dir"),
        ([], ["general.epochz=1"], "unknown key 'general.epochz': did you mean 'epochs'"),
    ],
)
def test_wrong_arguments_are_refused(write, losses, overrides, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        search_space.plan(write(), losses, overrides)


def test_wrong_storage(write, tmp_path, capsys):
    assert cli.main(["sweep", write(), "--storage", "nonsense", "--dir", str(tmp_path / "sweep")]) == 2
    assert "--storage: Optuna cannot open it" in capsys.readouterr().err


def test_dry_run_prints_studies_and_spaces(write, tmp_path, capsys):
    assert cli.main(["sweep", write(SWEEP + "\n  seeds: 2\n"), "--dry-run", "--dir", str(tmp_path / "sweep")]) == 0
    shown = capsys.readouterr().out
    assert "tiny/proxy_anchor: tpe, 6 trials, 12 runs" in shown
    assert "log_uniform [0.001, 1.0]" in shown
    assert not (tmp_path / "sweep").exists()


def test_the_start_of_losses_that_are_not_chosen_is_ignored():
    (search,) = search_space.plan("results/cars196_maps", ["cos"], [])
    rates = {"optimizers.model.Adam.lr": 5e-4, "optimizers.proxy_lr": 0.03}
    assert search.start == rates | {"loss.VMFProxyLoss.temperature": 0.0625}
