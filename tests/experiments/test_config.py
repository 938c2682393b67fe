"""Composing configurations: order of merging, overrides, per_loss, and errors that name key and nearest name."""

from dataclasses import fields, is_dataclass

import pytest
from omegaconf import OmegaConf

from pml_nivmf.experiments import config
from pml_nivmf.experiments.build import _OPTIONAL, _REQUIRED
from pml_nivmf.experiments.config import ConfigError, compose
from pml_nivmf.experiments.schema import GROUPS, ExperimentConfig, ObjectConfig

EXPERIMENT = """
groups: {loss: proxy_nca, model: resnet50, schedule: [cosine, early_stopping]}
general: {epochs: 7}
model:
optimizers: {proxy_lr: 0.1, temperature_lr: 0.01}
per_loss:
  proxy_anchor: {optimizers: {proxy_lr: 0.02, model: {SGD: {lr: 0.5}}}, loss: {ProxyAnchorLoss~OVERRIDE~: {alpha: 16}}}
  margin: {groups: {miner: distance_weighted, schedule: []}, general~OVERRIDE~: {epochs: 3}}
"""
PPK = "loss={VMFProxyLoss: {distance: {PPKDistance: {gamma: 2}}}}"


@pytest.fixture
def write(tmp_path):
    def write(text, name="mine.yaml"):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def test_every_group_has_a_default_and_every_file_a_description():
    assert all("default" in config.variants(group) for group in GROUPS)
    for path in config.config_folder().rglob("*.yaml"):
        assert path.read_text().startswith(("# ", "description: ")), path


def test_an_experiment_differs_from_its_base(write):
    base = write(EXPERIMENT + "seeds: 2\ncompare: [margin]", "base.yaml")
    middle = write(f"base: {base}\ncompare: [cos]\nper_loss: {{margin: {{general: {{seed: 4}}}}}}", "middle.yaml")
    name = write(f"base: {middle}\ngroups: {{model: conv_net}}\noptimizers: {{proxy_lr: 3, temperature_lr~DELETE~: }}")
    composed, with_margin = compose(name), compose(name, ["loss=margin"]).config
    assert (composed.seeds, composed.compare) == (2, ["cos"])
    assert (composed.loss_variant, composed.config.general.epochs) == ("proxy_nca", 7)
    assert "ConvNet" in composed.config.model.trunk
    assert (composed.config.optimizers.proxy_lr, composed.config.optimizers.temperature_lr) == (3, None)
    assert (with_margin.general.epochs, with_margin.general.seed) == (3, 4)
    assert list(with_margin.miner) == ["DistanceWeightedMiner"]
    with pytest.raises(ConfigError, match=r"unknown experiment 'table1/cup': did you mean 'table1/cub'"):
        compose(write("base: table1/cup"))


def test_every_object_of_a_configuration_is_checked():
    groups = {group.name: group.type for group in fields(ExperimentConfig)}
    settings = {f"{g}.{f.name}": f.type for g, kind in groups.items() if is_dataclass(kind) for f in fields(kind)}
    assert set(_REQUIRED | _OPTIONAL) == {key for key, kind in (groups | settings).items() if kind is ObjectConfig}


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], {"model.embedding_size": 512, "model.trunk": {"TimmTrunk": {"name": "resnet50.tv_in1k"}}}),
        ([], {"schedule.scheduler": {"CosineAnnealingLR": {}}, "schedule.patience": 10}),
        (["general.batch_size=32", "general.run_dir=x-${general.seed}"], {"general.run_dir": "x-0"}),
        (["general.amp=off", "sampler=shuffle"], {"general.amp": "off", "sampler": {}}),
        # per_loss comes after the experiment's sections and before the command line; the last of several losses decides
        ([], {"optimizers.proxy_lr": 0.1}),
        (["loss=proxy_anchor"], {"optimizers.proxy_lr": 0.02, "optimizers.temperature_lr": 0.01}),
        (["loss=proxy_anchor"], {"optimizers.model": {"SGD": {"lr": 0.5}}, "loss": {"ProxyAnchorLoss": {"alpha": 16}}}),
        (["loss=[proxy_anchor, margin]"], {"schedule.scheduler": {}, "general.epochs": 3, "optimizers.proxy_lr": 0.1}),
        (["loss=margin", "miner.DistanceWeightedMiner.cutoff=2"], {"miner.DistanceWeightedMiner.cutoff": 2}),
        (["loss=margin", "miner=default", "general.epochs=4"], {"miner": {}, "general.epochs": 4}),
    ],
)
def test_defaults_then_variants_then_experiment_then_command_line(overrides, expected, write):
    values = compose(write(EXPERIMENT), overrides).config
    assert {key: OmegaConf.select(values, key) for key in expected} == expected


def test_a_variant_of_the_command_line_comes_after_the_experiments_sections(write):
    experiment = write("groups: {model: conv_net}\nmodel: {trunk: {ConvNet: {width: 8}}, head_scale: 2}")
    model = compose(experiment, ["model.embedding_size=32", "model=resnet50"]).config.model
    assert (list(model.trunk), model.head_scale, model.embedding_size) == (["TimmTrunk"], 2, 32)


@pytest.mark.parametrize(
    ("overrides", "loss"),
    [
        (["loss=[el_nivmf, proxy_nca]"], {"ProxyNCALoss": {"softmax_scale": 8}}),
        (["loss=proxy_anchor", "loss.ProxyAnchorLoss.alpha=1e-1"], {"ProxyAnchorLoss": {"margin": 0.1, "alpha": 0.1}}),
        (["loss=proxy_anchor", "loss.ProxyAnchorLoss.margin~DELETE~"], {"ProxyAnchorLoss": {"alpha": 32}}),
        (["loss=proxy_anchor", "loss.ProxyAnchorLoss~OVERRIDE~={alpha: 1}"], {"ProxyAnchorLoss": {"alpha": 1}}),
        (["loss={ProxyNCALoss: {}}"], {"ProxyNCALoss": {}}),
        ([PPK, "loss.VMFProxyLoss.distance={KLDistance: {}}"], {"VMFProxyLoss": {"distance": {"KLDistance": {}}}}),
        (
            [PPK, "loss.VMFProxyLoss.distance.PPKDistance.gamma=3"],
            {"VMFProxyLoss": {"distance": {"PPKDistance": {"gamma": 3}}}},
        ),
        # Tn and Tp are arguments, not classes
        (["loss={RankedListLoss: {Tn: 1}}", "loss.RankedListLoss.Tp=2"], {"RankedListLoss": {"Tn": 1, "Tp": 2}}),
    ],
)
def test_same_class_merges_and_another_class_replaces(overrides, loss, write):
    assert compose(write(""), overrides).config.loss == loss


def test_files_of_users(write):
    loss = write("ProxyNCALoss: {}", "my_loss.yaml")
    composed = compose(
        write(f"per_loss: {{{loss}: {{loss: {{ProxyNCALoss: {{softmax_scale: 3}}}}}}}}"), [f"loss={loss}"]
    )
    assert composed.config.loss == {"ProxyNCALoss": {"softmax_scale": 3}}
    assert composed.loss_variant == loss
    with pytest.raises(FileNotFoundError, match=r"nowhere\.yaml"):
        compose("glyphs", ["loss=nowhere.yaml"])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["general.epoch=3"], "unknown key 'general.epoch': did you mean 'epochs'"),
        (["generel.epochs=3"], "unknown key 'generel': did you mean 'general'"),
        (["epochs=3"], "unknown key 'epochs': did you mean 'general.epochs'"),
        (["seed=3"], "unknown key 'seed': did you mean 'general.seed'"),
        (["evaluation.recall_at=1,5"], r"recall_at must be a list, evaluation.recall_at=\[1,5\], got '1,5'"),
        (["seeds=3"], "unknown key 'seeds'"),
        (["general.epochs=many"], "general.epochs: .*many"),
        (["evaluation.recall_at=[1, a]"], r"evaluation.recall_at\[1\]: "),
        (["loss=proxy_ancor"], "unknown loss 'proxy_ancor': did you mean 'proxy_anchor'"),
        (["general.epochs"], "expected key=value"),
        (["loss.ProxyAnchorLoss.alpha~DELETE~"], "cannot delete"),
        (["general=5"], "general must be a mapping, got 5"),
        (["general.epochs=[1"], "is not YAML"),
        (["general.run_dir=${general.nothing}"], "general.run_dir: .*general.nothing"),
        (["general.epochs=0"], "general.epochs must be at least 1, got 0"),
        (["optimizers.clip_norm=.nan"], "optimizers.clip_norm must be at least 0, got nan"),
        (["general.amp=half"], "general.amp must be one of off, bfloat16, float16, got 'half'"),
    ],
)
def test_bad_overrides_are_named(overrides, message):
    with pytest.raises(ValueError, match=message):
        compose("glyphs", overrides)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("groups: {dataset: glyfs}", "unknown dataset 'glyfs': did you mean 'glyphs'"),
        ("group: {dataset: glyphs}", "unknown key 'group': did you mean 'groups'"),
        ("general: {epochs: 3, sead: 1}", "unknown key 'general.sead': did you mean 'seed'"),
        ("general: {epochs: 3}\ngeneral: {seed: 1}", "mine.yaml is not YAML that can be read"),
        ("- a\n- b", "mine.yaml must be a mapping"),
        ("groups: {dataset: 3}", "expected the name of a dataset or a list of names, got 3"),
        ("compare: [el_nivmf, proxi_nca]", "unknown loss 'proxi_nca': did you mean 'proxy_nca'"),
        ("seeds: many", "seeds must be an integer of at least 1, got 'many'"),
        ("per_loss: {proxy_ancor: {}}", "unknown loss 'proxy_ancor': did you mean 'proxy_anchor'"),
        ("per_loss: {el_nivmf: 3}", "per_loss.el_nivmf must be a mapping, got 3"),
        ("per_loss: {el_nivmf: {optimizer: {}}}", "unknown key 'optimizer': did you mean 'opt"),
        ("per_loss: {el_nivmf: {groups: {miners: x}}}", "unknown key 'groups.miners'"),
    ],
)
def test_bad_files_are_named(write, text, message):
    with pytest.raises(ValueError, match=message):
        compose(write(text), ["loss=el_nivmf"])


def test_unknown_experiments_are_named():
    with pytest.raises(ConfigError, match="unknown experiment 'glyph': did you mean 'glyphs'"):
        compose("glyph")


def test_a_saved_configuration_is_read_again_and_compared():
    first = compose("glyphs").config
    assert config.parse_saved(config.to_yaml(first), "the run") == first
    second = compose("glyphs", ["loss=cos", "schedule=default", "general.seed=3", "general.epochs=4"]).config
    changed = ["loss", "schedule.scheduler.CosineAnnealingLR", "general.epochs"]
    assert config.differences(first, second, ignore=["general.seed"]) == changed
    with pytest.raises(ConfigError, match=r"the checkpoint: unknown key 'general\.epoch': did you mean 'epochs'"):
        config.parse_saved("general: {epoch: 3}", "the checkpoint")
