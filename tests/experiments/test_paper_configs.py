"""The packaged experiments: they have the paper's settings, and every object can be built."""

from pathlib import Path

import pytest
import timm
import torch
import yaml
from omegaconf import OmegaConf

from pml_nivmf.data.splits import Source, hold_out_classes, make_splits
from pml_nivmf.experiments import compare, registry, search_space
from pml_nivmf.experiments.build import build_parts, check_objects
from pml_nivmf.experiments.config import compose, config_folder, variants
from pml_nivmf.experiments.train import build_trainer, warm_start

SIX = ["margin", "multi_similarity", "proxy_nca", "el_nivmf_paper", "proxy_anchor", "panc_el_nivmf_paper"]
DISTANCES = ["cos", "l2", "nivmf_paper_normalizer", "b_vmf", "el_vmf", "kl_vmf_paper", "kl_vmf", "el_nivmf_paper"]
SAMPLED = {"estimator": "monte_carlo", "n_samples": 5, "antithetic": False}
SAMPLED |= {"normalizer": "paper", "log_normalizer": "paper"}


def settings(name, *overrides):
    return OmegaConf.to_container(compose(name, overrides).config, resolve=True)


def read(name):
    return yaml.safe_load((config_folder() / f"{name}.yaml").read_text())


@pytest.mark.parametrize("name", [name for name in variants("experiment") if "/" in name])
def test_tables_and_figures_have_the_papers_protocol(name):
    composed = compose(name)
    evaluation = composed.config.evaluation
    if name.startswith("results/"):
        assert evaluation.select_on in ("validation", "last"), "our own results never look at test classes"
        return
    assert (composed.seeds, evaluation.select, evaluation.retrieval) == (5, "recall_at_1", "cosine")
    assert list(evaluation.recall_at) == ([1, 10] if name.startswith("table2/sop") else [1, 2])
    assert {"map_at_1000_with_query", "NMI"} <= {*evaluation.test_metrics}
    assert evaluation.select_on == ("validation" if name.startswith("ablation/") else "test")
    assert not any(loss in ("el_nivmf", "panc_el_nivmf") for loss in composed.compare), "ours are extra rows"


@pytest.mark.parametrize("name", ["cub", "cars196", "sop"])
@pytest.mark.parametrize(
    ("loss", "arguments", "rate", "miner"),
    [
        ("proxy_nca", {"softmax_scale": 9}, 50 * 1e-5, {}),
        ("proxy_anchor", {"alpha": 32, "margin": 0.1}, 2000 * 1e-5, {}),
        ("margin", {"beta": 1.2, "margin": 0.2, "learn_beta": True}, 5e-4, {"DistanceWeightedMiner": {"cutoff": 0.5}}),
        ("multi_similarity", {"alpha": 2, "beta": 40, "base": 0.5}, None, {"MultiSimilarityMiner": {"epsilon": 0.1}}),
        ("el_nivmf_paper", {"temperature": 0.003, "embedding_scale": 1.0}, 5000 * 1e-5, {}),
        ("panc_el_nivmf_paper", {}, 5000 * 1e-5, {}),
    ],
)
def test_table_1(name, loss, arguments, rate, miner):
    assert compose(f"table1/{name}").compare == SIX
    values = settings(f"table1/{name}", f"loss={loss}")
    assert values["model"]["trunk"] == {"TimmTrunk": {"name": "resnet50.tv_in1k"}}
    assert values["model"]["freeze_batch_norm"]
    assert values["optimizers"]["model"] == {"Adam": {"lr": 1e-5, "weight_decay": 4e-3}}
    assert (values["schedule"]["scheduler"], values["sampler"]) == ({}, {"MPerClassSampler": {"m": 2}})
    assert values["schedule"]["warm_start"] == ("nivmf" in loss)
    assert values["model"]["head_scale"] == (1 if "nivmf" not in loss else 50 if name == "cub" else 10)
    assert arguments.items() <= next(iter(values["loss"].values())).items()
    assert rate is None or values["optimizers"]["proxy_lr"] == pytest.approx(rate)
    assert list(values["miner"]) == list(miner)
    assert all(expected.items() <= values["miner"][kind].items() for kind, expected in miner.items())


@pytest.mark.parametrize(
    ("name", "size", "epochs", "milestones", "gamma", "proxies", "concentrations", "kappa", "scale", "omega"),
    [
        ("cub_r50_128", 128, 250, [25, 50], 0.3, 5000, 20000, 6, 30, 3),
        ("cub_r50_512", 512, 250, [31], 0.1, 5000, 20000, 18, 50, 5),
        ("cars196_r50_128", 128, 300, [60, 80], 0.1, 7500, 7500, 9, 12, 0.3),
        ("cars196_r50_512", 512, 300, [105, 170], 0.2, 5000, 20000, 22, 10, 0.1),
    ],
)
def test_table_2(name, size, epochs, milestones, gamma, proxies, concentrations, kappa, scale, omega):
    values = settings(f"table2/{name}")
    assert (values["model"]["embedding_size"], values["general"]["epochs"]) == (size, epochs)
    assert (values["model"]["head_scale"], values["schedule"]["warm_start"]) == (scale, True)
    assert values["schedule"]["scheduler"] == {"MultiStepLR": {"milestones": milestones, "gamma": gamma}}
    rates = [values["optimizers"][key] for key in ("proxy_lr", "concentration_lr", "temperature_lr")]
    assert rates == pytest.approx([factor * 1e-5 for factor in (proxies, concentrations, 200)])
    joint = values["loss"]["JointProxyLoss"]
    paper = joint["probabilistic"]["NonIsotropicVMFLoss"]
    assert (paper["initial_concentration"], paper["embedding_scale"], joint["weight"]) == (kappa, 1, omega)
    assert (paper["temperature"], paper["temperature_position"]) == (0.003, "inside")
    assert SAMPLED.items() <= paper["distance"]["ExpectedLikelihoodNivMFDistance"].items()
    ours = settings(f"table2/{name}", "loss=panc_el_nivmf")
    assert (ours["loss"], ours["model"]["head_scale"]) == (read("loss/panc_el_nivmf"), 1)


def test_the_authors_rates_move_concentrations_and_temperature_as_theirs():
    """Adam steps on κ and t themselves, at 20,000 and 200 times the network's 1e-5."""
    values = settings("table2/cub_r50_512", "loss=panc_el_nivmf_paper")
    loss = registry.build("loss", values["loss"], "loss", num_classes=4, embedding_size=512)
    rates = {key: values["optimizers"][key] for key in ("proxy_lr", "concentration_lr", "temperature_lr")}
    optimizer = torch.optim.Adam(loss.param_groups(1e-5, **rates))
    torch.manual_seed(0)
    loss(torch.randn(8, 512), torch.arange(8) % 4).backward()
    ours = loss.probabilistic
    assert (ours.concentration == 18).all()
    assert ours.temperature.item() == pytest.approx(0.003)
    optimizer.step()
    steps = (ours.concentration - 18).abs()
    torch.testing.assert_close(steps, torch.full_like(steps, 0.2), rtol=0, atol=1e-4)
    assert abs(ours.temperature.item() - 0.003) == pytest.approx(0.002, rel=1e-2)


@pytest.mark.parametrize("loss", ["margin", "proxy_nca", "panc_el_nivmf"])
def test_weight_decay_is_that_of_the_network(loss, monkeypatch):
    monkeypatch.setitem(registry._KINDS["dataset"], "TinyFeatures", tiny_features)
    composed = compose("table1/cub", [f"loss={loss}", "general.device=cpu"])
    composed.config.dataset, composed.config.model.trunk = {"TinyFeatures": {}}, {"Identity": {}}
    for asked in (0.0, 0.01):
        composed.config.optimizers.loss_weight_decay = asked
        decays = {
            name: {group["weight_decay"] for group in optimizer.param_groups}
            for name, optimizer in build_parts(composed.config).optimizers.items()
        }
        assert decays["embedder_optimizer"] == {4e-3}
        assert max(decays["metric_loss_optimizer"]) == asked


@pytest.mark.parametrize(("name", "epochs"), [("cub", 50), ("cars196", 150), ("features", 10)])
def test_ablation(name, epochs):
    first, _, *_, last = plans = search_space.plan(f"ablation/{name}", [], [])
    assert ([plan.loss for plan in plans], first.section.sampler, first.section.seeds) == (DISTANCES, "grid", 3)
    assert [plan.trials for plan in plans] == [3, *[9] * 7], "cos has no concentration"
    for key, parameter in last.space.items():
        assert list(map(float, parameter.values)) == ([1, 1 / 32, 1 / 256] if "temp" in key else [10, 50, 200])
    assert first.base.general.epochs == epochs
    assert first.base.general.batch_size == (106 if epochs > 10 else 128)
    arguments = last.base.loss.NonIsotropicVMFLoss
    assert arguments.distance.ExpectedLikelihoodNivMFDistance == SAMPLED | {"n_samples": 20}
    assert 70 < arguments.initial_norm_per_dim * 512 < 140
    rates = [first.base.optimizers[key] for key in ("proxy_lr", "concentration_lr", "temperature_lr")]
    assert rates == pytest.approx([factor * 1e-5 for factor in (5000, 50000, 500)])
    assert first.section.reproduce == {"evaluation.select_on": "test"}
    for plan in plans:
        corner = plan.job(Path(), 0, {key: parameter.values[0] for key, parameter in plan.space.items()}, seed=0)
        registry.build("loss", OmegaConf.to_container(corner.config.loss), "loss", num_classes=3, embedding_size=128)


@pytest.mark.parametrize("name", ["cub", "cars196", "sop", "glyphs", "omniglot", "features"])
def test_omega(name, tmp_path):
    jobs = compare.plan(f"omega/{name}", [], 1, [], tmp_path)
    weights = [getattr(job.config.loss.get("JointProxyLoss"), "weight", None) for job in jobs]
    assert weights == [None, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, None]
    assert [jobs[0].label, jobs[-1].label] == ["el_nivmf_paper", "proxy_anchor"]


def test_a_users_bn_inception(monkeypatch, tmp_path):
    """Registered with timm by a plugin."""

    def bn_inception(pretrained=False, **kwargs):
        return timm.create_model("resnet10t", **kwargs)

    monkeypatch.setitem(timm.models._registry._model_entrypoints, "bn_inception", bn_inception)
    torch.save(timm.create_model("resnet10t").state_dict(), tmp_path / "mine.pth")
    trunk = settings("table2/cub_ibn_512")["model"]["trunk"]
    trunk["TimmTrunk"]["weights_file"] = str(tmp_path / "mine.pth")
    assert registry.build("trunk", trunk, "model.trunk")(torch.zeros(1, 3, 64, 64)).shape == (1, 512)


def tiny_features(validation_share=0.25):
    labels = torch.arange(80).repeat_interleave(2)
    source = Source(torch.rand(len(labels), 16), labels)
    return make_splits(source, source, hold_out_classes(labels, validation_share, 0), torch.clone, torch.clone, (16,))


@pytest.mark.parametrize("name", variants("experiment"))
def test_every_loss_of_every_experiment_trains_two_steps(name, monkeypatch):
    """On tiny data and without a trunk: no files, no downloads."""
    monkeypatch.setitem(registry._KINDS["dataset"], "TinyFeatures", tiny_features)
    first = compose(name)
    for loss in dict.fromkeys([first.loss_variant, *first.compare, *read(name).get("per_loss", {})]):
        composed = compose(name, [f"loss={loss}", "general.device=cpu", "general.num_workers=0"])
        check_objects(composed)
        config = composed.config
        config.dataset, config.model.trunk, config.general.batch_size = {"TinyFeatures": {}}, {"Identity": {}}, 60
        config.model.embedding_size, config.model.cached_views, config.model.fit_norms = 128, None, False
        parts = build_parts(config)
        assert {type(parts.loss).__name__} == set(read(f"loss/{loss}"))
        optimized = {p for o in parts.optimizers.values() for group in o.param_groups for p in group["params"]}
        assert set(parts.loss.parameters()) <= optimized
        assert len(parts.schedulers) == (len(parts.optimizers) if config.schedule.scheduler else 0)
        before = [parameter.clone() for parameter in parts.embedder.parameters()]
        warm_start(config, parts)
        trainer = build_trainer(config, parts, lambda trainer: True)
        trainer.train(1, 1)
        assert len(trainer.batch_losses) == 2, loss
        assert not any(map(torch.equal, before, parts.embedder.parameters()))
