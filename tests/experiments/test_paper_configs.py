"""The packaged experiments: they have the paper's settings, and every object can be built."""

import pytest
import torch
import yaml
from omegaconf import OmegaConf

from pml_nivmf import cli
from pml_nivmf.data.splits import Source, hold_out_classes, make_splits
from pml_nivmf.experiments import registry
from pml_nivmf.experiments.build import build_parts, check_objects
from pml_nivmf.experiments.config import compose, config_folder, variant_names

SIBLINGS = ("glyphs", "omniglot", "features")
SIX = ["margin", "multi_similarity", "proxy_nca", "el_nivmf", "proxy_anchor", "panc_el_nivmf"]
SEVEN = ["cos", "l2", "nivmf", "b_vmf", "el_vmf", "kl_vmf", "el_nivmf"]


def settings(name, *overrides):
    return OmegaConf.to_container(compose(name, overrides).config, resolve=True)


def read(name):
    return yaml.safe_load((config_folder() / f"{name}.yaml").read_text())


@pytest.mark.parametrize("name", ["cub", "cars196", "sop"])
@pytest.mark.parametrize(
    ("loss", "arguments", "rate", "miner"),
    [
        ("proxy_nca", {}, 50 * 1e-5, {}),
        ("proxy_anchor", {"alpha": 32, "margin": 0.1}, 2000 * 1e-5, {}),
        ("margin", {"beta": 1.2, "margin": 0.2, "learn_beta": True}, 5e-4, {"DistanceWeightedMiner": {"cutoff": 0.5}}),
        ("multi_similarity", {"alpha": 2, "beta": 40, "base": 0.5}, None, {"MultiSimilarityMiner": {"epsilon": 0.1}}),
    ],
)
def test_table_1(name, loss, arguments, rate, miner):
    assert (compose(f"table1/{name}").compare, compose(f"table1/{name}").seeds) == (SIX, 5)
    values = settings(f"table1/{name}", f"loss={loss}")
    assert values["model"]["trunk"] == {"TimmTrunk": {"name": "resnet50"}}
    assert values["model"]["freeze_batch_norm"]
    assert values["optimizers"]["model"] == {"Adam": {"lr": 1e-5, "weight_decay": 4e-3}}
    assert (values["schedule"]["scheduler"], values["sampler"]) == ({}, {"MPerClassSampler": {"m": 2}})
    assert "map_at_1000_with_query" in values["evaluation"]["metrics"]
    assert arguments.items() <= next(iter(values["loss"].values())).items()
    assert rate is None or values["optimizers"]["proxy_lr"] == pytest.approx(rate)
    assert list(values["miner"]) == list(miner)
    assert all(expected.items() <= values["miner"][kind].items() for kind, expected in miner.items())


@pytest.mark.parametrize(
    ("name", "size", "epochs", "milestones", "gamma", "proxies", "concentrations", "kappa", "norm", "omega"),
    [
        ("cub_r50_128", 128, 250, [25, 50], 0.3, 5000, 20000, 6, 30, 3),
        ("cub_r50_512", 512, 250, [31], 0.1, 5000, 20000, 18, 50, 5),
        ("cars196_r50_128", 128, 300, [60, 80], 0.1, 7500, 7500, 9, 12, 0.3),
        ("cars196_r50_512", 512, 300, [105, 170], 0.2, 5000, 20000, 22, 10, 0.1),
    ],
)
def test_table_2(name, size, epochs, milestones, gamma, proxies, concentrations, kappa, norm, omega):
    values = settings(f"table2/{name}", "loss=panc_el_nivmf_paper")
    assert (values["model"]["embedding_size"], values["general"]["epochs"]) == (size, epochs)
    assert values["schedule"]["scheduler"] == {"MultiStepLR": {"milestones": milestones, "gamma": gamma}}
    rates = [values["optimizers"][key] for key in ("proxy_lr", "concentration_lr", "temperature_lr")]
    assert rates == pytest.approx([factor * 1e-5 for factor in (proxies, concentrations, 200)])
    joint = values["loss"]["JointProxyLoss"]
    ours = joint["probabilistic"]["NonIsotropicVMFLoss"]
    assert (ours["initial_concentration"], ours["embedding_scale"], joint["weight"]) == (kappa, norm, omega)
    assert (ours["temperature"], ours["temperature_position"]) == (0.003, "inside")
    sampled = {"estimator": "monte_carlo", "n_samples": 5, "antithetic": False, "normalizer": "paper"}
    assert ours["distance"] == {"ExpectedLikelihoodNivMFDistance": sampled}


@pytest.mark.parametrize("name", [name for name in variant_names("experiment") if name.startswith("table2/")])
def test_table_2_has_our_settings_too(name):
    composed = compose(name)
    assert composed.compare == ["panc_el_nivmf_paper", "panc_el_nivmf"]
    assert settings(name, "loss=panc_el_nivmf")["loss"] == read("loss/panc_el_nivmf")
    assert "NMI" in composed.config.evaluation.metrics
    assert list(composed.config.evaluation.recall_at) == ([1, 10] if "sop" in name else [1, 2])


@pytest.mark.parametrize("name", ["cub", *SIBLINGS])
def test_grid_of_the_ablation(name):
    experiment = read(f"ablation/{name}")
    sweep = experiment["sweep"]
    assert (experiment["compare"], sweep["sampler"], sweep["seeds"]) == (SEVEN, "grid", 3)
    assert set(sweep["losses"]) == {"l2", "b_vmf", "el_vmf", "kl_vmf"}, "cos has no concentration"
    for key, values in [*sweep["space"].items(), *(pair for loss in sweep["losses"].values() for pair in loss.items())]:
        assert values["choice"] == ([1, 1 / 32, 1 / 256] if key.endswith("temperature") else [10, 50, 200])
    by_l2 = settings(f"ablation/{name}", "evaluation=[table1, l2]")["evaluation"]
    assert by_l2 == settings(f"ablation/{name}")["evaluation"] | {"retrieval": "l2"}


@pytest.mark.parametrize("sibling", SIBLINGS)
@pytest.mark.parametrize(
    ("table", "photos"),
    [("table1", "cub"), ("table2", "cub_r50_128"), ("ablation", "cub"), ("omega", "cub")],
)
def test_siblings_have_the_same_structure(table, photos, sibling):
    small, large = compose(f"{table}/{sibling}"), compose(f"{table}/{photos}")
    assert (small.compare, small.seeds, small.sweep) == (large.compare, large.seeds, large.sweep)
    assert list(small.config.schedule.scheduler) == list(large.config.schedule.scheduler)
    assert (small.config.evaluation, small.config.sampler) == (large.config.evaluation, large.config.sampler)


def tiny_features():
    labels = torch.arange(120).repeat_interleave(2)
    source = Source(torch.rand(len(labels), 16), labels)
    return make_splits(source, source, hold_out_classes(labels, 0.25, 0), torch.clone, torch.clone, (16,))


@pytest.mark.parametrize("name", variant_names("experiment"))
def test_every_loss_of_every_experiment_is_built_and_gives_a_gradient(name, monkeypatch):
    """On tiny data and without a trunk: no files, no downloads."""
    monkeypatch.setitem(registry._KINDS["dataset"], "TinyFeatures", tiny_features)
    first = compose(name)
    for loss in dict.fromkeys([first.loss_variant, *first.compare, *read(name).get("per_loss", {})]):
        composed = compose(name, [f"loss={loss}", "general.device=cpu"])
        check_objects(composed)
        composed.config.dataset, composed.config.model.trunk = {"TinyFeatures": {}}, {"Identity": {}}
        parts = build_parts(composed.config)
        assert {type(parts.loss).__name__} == set(read(f"loss/{loss}"))
        optimized = {p for o in parts.optimizers.values() for group in o.param_groups for p in group["params"]}
        assert set(parts.loss.parameters()) <= optimized
        assert len(parts.schedulers) == (len(parts.optimizers) if composed.config.schedule.scheduler else 0)
        embeddings = torch.randn(8, composed.config.model.embedding_size, requires_grad=True)
        labels = torch.arange(8) // 2
        mined = None if parts.miner is None else parts.miner(embeddings, labels)
        parts.loss(embeddings, labels, mined).backward()
        assert bool(embeddings.grad.isfinite().all()), loss


@pytest.mark.parametrize("name", ["ablation/cub", "omega/features"])
def test_searches_can_be_planned(name, capsys):
    assert cli.main(["sweep", name, "--dry-run"]) == 0
    assert name in capsys.readouterr().out
