"""Settings of single losses: when they hold, what they are merged after and before, and what is refused."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from pml_nivmf.commands import run as run_command
from pml_nivmf.experiments import compare
from pml_nivmf.experiments.config import compose
from pml_nivmf.experiments.errors import ConfigError

EXPERIMENT = """
description: each loss with settings of its own
groups: {loss: el_nivmf, schedule: cosine}
compare: [el_nivmf, proxy_anchor, margin]
seeds: 1
optimizers: {proxy_lr: 0.1, temperature_lr: 0.01}
per_loss:
  proxy_anchor:
    optimizers: {proxy_lr: 0.02, model: {SGD: {lr: 0.5}}}
    loss: {ProxyAnchorLoss: {alpha: 16}}
  margin: {groups: {miner: distance_weighted, schedule: []}, general~OVERRIDE~: {epochs: 3}}
"""


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(EXPERIMENT)
    return str(file)


def plain(*args):
    return OmegaConf.to_container(compose(*args).config, resolve=True)


def test_a_loss_without_a_section_has_the_experiments_settings(path):
    values = plain(path)
    assert values["optimizers"]["proxy_lr"] == 0.1
    assert values["miner"] == {}
    assert "CosineAnnealingLR" in values["schedule"]["scheduler"]


def test_a_section_is_merged_after_the_experiments_own(path):
    values = plain(path, ["loss=proxy_anchor"])
    assert values["optimizers"]["proxy_lr"] == 0.02
    assert values["optimizers"]["temperature_lr"] == 0.01
    assert values["optimizers"]["model"] == {"SGD": {"lr": 0.5}}
    assert values["loss"] == {"ProxyAnchorLoss": {"margin": 0.1, "alpha": 16}}


def test_a_section_chooses_variants_and_replaces(path):
    values = plain(path, ["loss=margin"])
    assert list(values["miner"]) == ["DistanceWeightedMiner"]
    assert values["schedule"]["scheduler"] == {}
    assert values["general"]["epochs"] == 3


def test_the_command_line_comes_last(path):
    values = plain(path, ["loss=margin", "miner=multi_similarity", "general.epochs=4"])
    assert list(values["miner"]) == ["MultiSimilarityMiner"]
    assert values["general"]["epochs"] == 4


def test_the_last_of_several_losses_decides(path):
    assert plain(path, ["loss=[proxy_anchor, margin]"])["optimizers"]["proxy_lr"] == 0.1
    assert plain(path, ["loss=[margin, proxy_anchor]"])["optimizers"]["proxy_lr"] == 0.02


def test_a_loss_of_ones_own_file(tmp_path):
    own = tmp_path / "my_loss.yaml"
    own.write_text("# mine\nProxyNCALoss: {}\n")
    file = tmp_path / "mine.yaml"
    file.write_text(f"per_loss: {{{own}: {{loss: {{ProxyNCALoss: {{softmax_scale: 3}}}}}}}}\n")
    assert plain(str(file), [f"loss={own}"])["loss"] == {"ProxyNCALoss": {"softmax_scale": 3}}
    assert list(plain(str(file))["loss"]) == ["NonIsotropicVMFLoss"]


def test_compare_gives_every_loss_its_own_section(path, tmp_path):
    overrides = ["loss.ProxyAnchorLoss.margin=0.2", "optimizers.temperature_lr=0.5"]
    jobs = {job.loss: job.config for job in compare.plan(path, [], None, overrides, tmp_path)}
    assert {name: job.optimizers.proxy_lr for name, job in jobs.items()} == {
        "el_nivmf": 0.1,
        "proxy_anchor": 0.02,
        "margin": 0.1,
    }
    assert jobs["proxy_anchor"].loss == {"ProxyAnchorLoss": {"margin": 0.2, "alpha": 16}}
    assert {name: list(job.miner) for name, job in jobs.items() if job.miner} == {"margin": ["DistanceWeightedMiner"]}
    assert {job.optimizers.temperature_lr for job in jobs.values()} == {0.5}


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("[a]", "mine.yaml: per_loss must be a mapping of loss variants"),
        ("{proxy_ancor: {}}", "mine.yaml: per_loss: unknown loss 'proxy_ancor': did you mean 'proxy_anchor'"),
        ("{proxy_nca: 3}", "mine.yaml: per_loss.proxy_nca must be a mapping of groups to settings, got 3"),
        ("{proxy_nca: {optimizer: {}}}", "per_loss.proxy_nca: unknown key 'optimizer': did you mean 'optimizers'"),
        ("{proxy_nca: {groups: 3}}", "per_loss.proxy_nca.groups must be a mapping"),
        ("{proxy_nca: {groups: {miners: x}}}", "per_loss.proxy_nca: unknown key 'groups.miners': did you mean 'miner'"),
        ("{proxy_nca: {groups: {loss: margin}}}", "per_loss.proxy_nca: unknown key 'groups.loss'"),
        ("{proxy_nca: {groups: {miner: 3}}}", "per_loss.proxy_nca: groups.miner must be a variant's name"),
        ("{proxy_nca: {groups: {miner: multi}}}", "per_loss.proxy_nca: unknown miner 'multi'"),
        ("{proxy_nca: {loss: {ProxyAnchorLoss: {}}}}", "per_loss.proxy_nca.loss: proxy_nca is a ProxyNCALoss, so give"),
        ("{proxy_nca: {loss: 3}}", "per_loss.proxy_nca.loss: proxy_nca is a ProxyNCALoss, so give"),
        ("{el_nivmf: {optimizers: {proxi_lr: 1}}}", "per_loss.el_nivmf: unknown key 'optimizers.proxi_lr': did you"),
        ("{el_nivmf: {general: {epochs: 0}}}", "per_loss.el_nivmf: general.epochs must be at least 1"),
    ],
)
def test_bad_sections_are_named_with_file_key_and_nearest_name(tmp_path, section, message):
    file = tmp_path / "mine.yaml"
    file.write_text(f"groups: {{loss: el_nivmf}}\nper_loss: {section}\n")
    with pytest.raises(ConfigError, match=message):
        compose(str(file))


def test_folders_are_named_after_experiment_and_loss(path, tmp_path):
    own = tmp_path / "my_loss.yaml"
    own.write_text("# mine\nProxyNCALoss: {}\n")
    assert run_command._run_folder(compose(path, ["loss=margin"])) == Path("runs/mine/margin/seed-0")
    assert run_command._run_folder(compose(path, [f"loss={own}"])) == Path("runs/mine/my_loss/seed-0")
