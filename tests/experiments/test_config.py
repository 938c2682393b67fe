"""Composing configurations: order of merging, overrides, and errors that name file, key and nearest name."""

import pytest
from omegaconf import OmegaConf

from pml_nivmf.experiments import config_files
from pml_nivmf.experiments.config import compose
from pml_nivmf.experiments.errors import ConfigError
from pml_nivmf.experiments.schema import GROUPS


def plain(*args):
    return OmegaConf.to_container(compose(*args).config, resolve=True)


def experiment(tmp_path, text):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return str(path)


def test_every_group_has_a_default_and_every_file_a_description():
    folder = config_files.config_folder()
    for group in GROUPS:
        assert "default" in config_files.variant_names(group), group
    for path in folder.rglob("*.yaml"):
        assert len(config_files.description_of(path)) > 10, path


@pytest.mark.parametrize("name", config_files.experiment_names())
def test_every_experiment_composes_with_every_loss_it_compares(name):
    for loss in compose(name).compare:
        assert list(compose(name, [f"loss={loss}"]).config.loss)


def test_defaults_then_variants_then_experiment_then_command_line(tmp_path):
    path = experiment(tmp_path, "groups: {model: resnet50, schedule: [cosine, early_stopping]}\ngeneral: {epochs: 7}\n")
    values = plain(path, ["general.batch_size=32"])
    assert values["model"] == {
        "trunk": {"TimmTrunk": {"name": "resnet50"}},
        "embedding_size": 512,
        "freeze_batch_norm": True,
    }
    assert values["schedule"]["scheduler"] == {"CosineAnnealingLR": {"T_max": 7}}
    assert values["schedule"]["patience"] == 10
    assert values["general"]["batch_size"] == 32


def test_later_names_of_a_group_win(tmp_path):
    path = experiment(tmp_path, "groups: {loss: [el_nivmf, proxy_nca]}\n")
    assert plain(path)["loss"] == {"ProxyNCALoss": {"softmax_scale": 8}}
    assert plain(path, ["loss=[proxy_nca, proxy_anchor]"])["loss"] == {"ProxyAnchorLoss": {"margin": 0.1, "alpha": 32}}


def test_same_class_merges_and_another_class_replaces():
    assert plain("glyphs", ["loss.NonIsotropicVMFLoss.n_samples=3"])["loss"] == {
        "NonIsotropicVMFLoss": {"n_samples": 3}
    }
    assert plain("glyphs", ["loss=proxy_anchor", "loss.ProxyAnchorLoss.alpha=16"])["loss"] == {
        "ProxyAnchorLoss": {"margin": 0.1, "alpha": 16}
    }
    assert plain("glyphs", ["loss={ProxyNCALoss: {}}"])["loss"] == {"ProxyNCALoss": {}}


def test_exponents_are_numbers(tmp_path):
    path = experiment(tmp_path, "optimizers: {model: {Adam: {lr: 1e-3}}}\n")
    assert plain(path)["optimizers"]["model"] == {"Adam": {"lr": 0.001}}
    assert plain("glyphs", ["optimizers.model.Adam.lr=2.5E-4"])["optimizers"]["model"]["Adam"]["lr"] == 0.00025
    assert plain("glyphs", ["general.seed=3"])["general"]["seed"] == 3


def test_replace_and_delete(tmp_path):
    path = experiment(tmp_path, "groups: {loss: proxy_anchor}\nloss: {ProxyAnchorLoss~OVERRIDE~: {alpha: 8}}\n")
    assert plain(path)["loss"] == {"ProxyAnchorLoss": {"alpha": 8}}
    assert plain(path, ["sampler=shuffle"])["sampler"] == {}
    assert plain("glyphs", ["loss=proxy_anchor", "loss.ProxyAnchorLoss.margin~DELETE~"])["loss"] == {
        "ProxyAnchorLoss": {"alpha": 8}
    }
    assert plain("glyphs", ["loss=proxy_anchor", "loss.ProxyAnchorLoss~OVERRIDE~={alpha: 1}"])["loss"] == {
        "ProxyAnchorLoss": {"alpha": 1}
    }


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["general.epoch=3"], "command line: unknown key 'general.epoch': did you mean 'epochs'"),
        (["generel.epochs=3"], "unknown key 'generel': did you mean 'general'"),
        (["general.epochs=many"], "command line: general.epochs: .*many.*"),
        (["loss=proxy_ancor"], "command line: unknown loss 'proxy_ancor': did you mean 'proxy_anchor'"),
        (["general.epochs"], "expected key=value"),
        (["loss.ProxyAnchorLoss.alpha~DELETE~"], "cannot delete"),
        (["general=5"], "general must be a mapping, got 5"),
        (["loss~OVERRIDE~={A: {}, B: {}}"], "loss must name one class, got A, B"),
        (["general.epochs=[1"], "is not YAML"),
        (["general.epochs=0"], "command line: general.epochs must be at least 1, got 0"),
        (["evaluation.every=0"], "evaluation.every must be at least 1"),
        (["general.threads=0"], "general.threads must be at least 1"),
        (["schedule.patience=0"], "schedule.patience must be at least 1"),
        (["optimizers.proxy_lr=-1"], "command line: optimizers.proxy_lr must be at least 0, got -1"),
    ],
)
def test_bad_overrides_are_named(overrides, message):
    with pytest.raises(ConfigError, match=message):
        compose("glyphs", overrides)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("groups: {dataset: glyfs}\n", "mine.yaml: unknown dataset 'glyfs': did you mean 'glyphs'"),
        ("group: {dataset: glyphs}\n", "mine.yaml: unknown key 'group': did you mean 'groups'"),
        ("groups: {data: glyphs}\n", "mine.yaml: unknown key 'groups.data'"),
        ("general: {epochs: 3, sead: 1}\n", "mine.yaml: unknown key 'general.sead': did you mean 'seed'"),
        ("- a\n- b\n", "must hold a mapping"),
        ("a: [1\n", "is not YAML"),
        ("groups: {dataset: 3}\n", "groups.dataset must be a variant's name"),
        ("compare: 3\n", "compare must be a variant's name or a list"),
        ("compare: [el_nivmf, proxi_nca]\n", "mine.yaml: compare: unknown loss 'proxi_nca': did you mean 'proxy_nca'"),
        ("groups~OVERRIDE~: {dataset: glyphs}\n", "mine.yaml: unknown key 'groups~OVERRIDE~'"),
        ("compare: [el_nivmf]\nseeds: many\n", "seeds must be an integer of at least 1, got 'many'"),
    ],
)
def test_bad_files_are_named(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        compose(experiment(tmp_path, text))


def test_every_object_slot_has_a_kind():
    from pml_nivmf.experiments.build import _OBJECT_KINDS
    from pml_nivmf.experiments.schema import OBJECT_PATHS

    assert set(_OBJECT_KINDS) == set(OBJECT_PATHS)


def test_unknown_experiment():
    with pytest.raises(ConfigError, match="unknown experiment 'glyph': did you mean 'glyphs'"):
        compose("glyph")
    with pytest.raises(ConfigError, match=r"there is no file nowhere\.yaml"):
        compose("nowhere.yaml")
    with pytest.raises(ConfigError, match="unknown experiment"):
        compose("../setup")
