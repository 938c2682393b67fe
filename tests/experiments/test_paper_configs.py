"""The paper's experiments: they say what the paper says, every object of them can be built, the small ones train."""

import functools
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from pml_nivmf import cli, data, models
from pml_nivmf.data.splits import Source, hold_out_classes, make_splits
from pml_nivmf.experiments import registry, run
from pml_nivmf.experiments.build import build_parts, check_objects
from pml_nivmf.experiments.config import compose
from pml_nivmf.experiments.config_files import config_folder, experiment_names, find_experiment, load, loss_class
from pml_nivmf.experiments.sweeps import section as sweep_section

from ..data import fakes

SHARED = Path(__file__).parents[3] / "shared" / "data"
SIBLINGS = ("glyphs", "omniglot", "features")
TABLES = ("table1", "table2", "ablation", "omega")
INPUT_SHAPES = {
    "CUB": (3, 32, 32),
    "Cars196": (3, 32, 32),
    "StanfordOnlineProducts": (3, 32, 32),
    "Omniglot": (1, 28, 28),
    "Glyphs": (1, 32, 32),
    "FeatureArrays": (16,),
}
SIX = ("margin", "multi_similarity", "proxy_nca", "el_nivmf", "proxy_anchor", "panc_el_nivmf")
SEVEN = ("cos", "l2", "nivmf", "b_vmf", "el_vmf", "kl_vmf", "el_nivmf")


def settings(name, *overrides):
    return OmegaConf.to_container(compose(name, overrides).config, resolve=True)


def losses_of(name):
    """What an experiment compares, and what else it has settings for."""
    composed = compose(name)
    others = load(find_experiment(name)).get("per_loss", {})
    return list(dict.fromkeys([composed.loss_variant, *composed.compare, *others]))


# What the paper says ----------------------------------------------------------------------------------------------


def test_every_experiment_is_there_with_three_small_siblings():
    names = set(experiment_names())
    wanted = {f"table1/{name}" for name in ("cub", "cars196", "sop")}
    wanted |= {f"table2/{name}_r50_{size}" for name in ("cub", "cars196", "sop") for size in (128, 512)}
    wanted |= {f"table2/{name}_ibn_512" for name in ("cub", "cars196", "sop")}
    wanted |= {"ablation/cub", "omega/cub"} | {f"{table}/{sibling}" for table in TABLES for sibling in SIBLINGS}
    assert wanted <= names


@pytest.mark.parametrize("name", ["cub", "cars196", "sop"])
def test_table_1(name):
    name = f"table1/{name}"
    composed = compose(name)
    assert set(composed.compare) == set(SIX)
    assert composed.seeds == 5
    for loss in composed.compare:
        values = settings(name, f"loss={loss}")
        assert values["model"]["trunk"] == {"TimmTrunk": {"name": "resnet50"}}
        assert values["model"]["freeze_batch_norm"]
        assert values["optimizers"]["model"] == {"Adam": {"lr": 1e-5, "weight_decay": 4e-3}}
        assert values["schedule"]["scheduler"] == {}
        assert values["sampler"] == {"MPerClassSampler": {"m": 2}}
        assert "map_at_1000_with_query" in values["evaluation"]["metrics"]
        assert 1 in values["evaluation"]["recall_at"]


@pytest.mark.parametrize(
    ("loss", "arguments", "rate", "miner"),
    [
        ("proxy_nca", {}, 50 * 1e-5, {}),
        ("proxy_anchor", {"alpha": 32, "margin": 0.1}, 2000 * 1e-5, {}),
        ("margin", {"beta": 1.2, "margin": 0.2, "learn_beta": True}, 5e-4, {"DistanceWeightedMiner": {"cutoff": 0.5}}),
        ("multi_similarity", {"alpha": 2, "beta": 40, "base": 0.5}, None, {"MultiSimilarityMiner": {"epsilon": 0.1}}),
    ],
)
@pytest.mark.parametrize("name", ["table1/cub", "table1/cars196", "table1/sop"])
def test_baselines_of_table_1(name, loss, arguments, rate, miner):
    values = settings(name, f"loss={loss}")
    assert arguments.items() <= values["loss"][loss_class(loss)].items()
    if rate is not None:
        assert values["optimizers"]["proxy_lr"] == pytest.approx(rate)
    assert list(values["miner"]) == list(miner)
    for kind, expected in miner.items():
        assert expected.items() <= values["miner"][kind].items()


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
    lr = values["optimizers"]["model"]["Adam"]["lr"]
    assert values["model"]["embedding_size"] == size
    assert values["general"]["epochs"] == epochs
    assert values["schedule"]["scheduler"] == {"MultiStepLR": {"milestones": milestones, "gamma": gamma}}
    assert values["schedule"]["warm_start"]
    assert values["optimizers"]["proxy_lr"] == pytest.approx(proxies * lr)
    assert values["optimizers"]["concentration_lr"] == pytest.approx(concentrations * lr)
    assert values["optimizers"]["temperature_lr"] == pytest.approx(200 * lr)
    joint = values["loss"]["JointProxyLoss"]
    known = {"n_samples": 5, "temperature": 0.003, "temperature_position": "inside", "estimator": "monte_carlo"}
    expected = known | {"initial_concentration": kappa, "embedding_scale": norm}
    assert expected.items() <= joint["probabilistic"]["NonIsotropicVMFLoss"].items()
    assert joint["weight"] == omega


@pytest.mark.parametrize("name", [name for name in experiment_names() if name.startswith("table2/")])
def test_table_2_carries_our_own_setting_besides(name):
    composed = compose(name)
    assert composed.compare == ["panc_el_nivmf_paper", "panc_el_nivmf"]
    ours, alone = settings(name, "loss=panc_el_nivmf")["loss"], load(config_folder() / "loss" / "panc_el_nivmf.yaml")
    assert ours == alone, "the recommended setting stands in one place"
    evaluation = composed.config.evaluation
    assert "NMI" in evaluation.metrics
    assert list(evaluation.recall_at) == ([1, 10] if "sop" in name else [1, 2])


@pytest.mark.parametrize("name", ["cub", *SIBLINGS])
def test_grid_of_the_ablation(name):
    name = f"ablation/{name}"
    composed = compose(name)
    sweep = sweep_section.read_settings(composed.sweep, name)
    assert (composed.compare, composed.seeds) == (list(SEVEN), 5)
    assert (sweep.sampler, sweep.seeds) == ("grid", 3)
    for loss in SEVEN:
        space = sweep_section.space_of(composed.sweep, loss, name)
        ranges = {key.rpartition(".")[2]: sorted(parameter.values) for key, parameter in space.items()}
        assert ranges.pop("temperature") == [1 / 256, 1 / 32, 1]
        assert ranges == ({} if loss == "cos" else {"initial_concentration": [10, 50, 200]})


def test_batch_and_size_of_the_ablation():
    values = settings("ablation/cub")
    assert values["general"]["batch_size"] == 106
    assert values["model"]["embedding_size"] == 512
    assert values["model"]["trunk"] == {"TimmTrunk": {"name": "resnet50"}}


@pytest.mark.parametrize("name", ["cub", "cars196", *SIBLINGS])
def test_omega_is_on_a_logarithmic_grid(name):
    composed = compose(f"omega/{name}")
    assert composed.compare == ["panc_el_nivmf"]
    ((key, weights),) = sweep_section.space_of(composed.sweep, "panc_el_nivmf", name).items()
    assert key == "loss.JointProxyLoss.weight"
    steps = [math.log10(b / a) for a, b in itertools.pairwise(weights.values)]
    assert steps == pytest.approx([0.5] * len(steps), abs=0.03)
    assert weights.values[0] <= 0.01
    assert weights.values[-1] >= 10


@pytest.mark.parametrize("name", ["ablation/cub", "omega/features"])
def test_sweeps_can_be_planned(name, capsys):
    assert cli.main(["sweep", name, "--dry-run"]) == 0
    assert name in capsys.readouterr().out


def test_retrieval_by_l2_is_a_variant():
    assert settings("ablation/cub")["evaluation"]["retrieval"] == "cosine"
    by_l2 = settings("ablation/cub", "evaluation=[table1, l2]")["evaluation"]
    assert by_l2 == settings("ablation/cub")["evaluation"] | {"retrieval": "l2"}


@pytest.mark.parametrize("sibling", SIBLINGS)
@pytest.mark.parametrize(("table", "photos"), [("table1", "cub"), ("table2", "cub_r50_128"), ("omega", "cub")])
def test_siblings_have_the_same_structure(table, photos, sibling):
    small, large = compose(f"{table}/{sibling}"), compose(f"{table}/{photos}")
    assert small.compare == large.compare
    assert small.seeds == large.seeds
    assert small.sweep == large.sweep
    assert list(small.config.schedule.scheduler) == list(large.config.schedule.scheduler)
    assert small.config.evaluation == large.config.evaluation
    assert small.config.sampler == large.config.sampler
    for loss in small.compare:
        miners = [list(compose(f"{table}/{name}", [f"loss={loss}"]).config.miner) for name in (sibling, photos)]
        assert miners[0] == miners[1]


# Everything can be built ------------------------------------------------------------------------------------------


def tiny_dataset(name):
    """A data set of 120 classes with the arguments of the real one."""

    @functools.wraps(getattr(data, name))
    def splits(**_arguments):
        labels = torch.arange(120).repeat_interleave(2)
        source = Source(torch.rand(len(labels), *INPUT_SHAPES[name]), labels)
        held_out = hold_out_classes(labels, 0.25, 0)
        return make_splits(source, source, held_out, torch.clone, torch.clone, INPUT_SHAPES[name])

    return splits


@functools.cache
def untrained(kind, name):
    return getattr(models, kind)(name=name, pretrained=False)


@pytest.fixture
def offline(monkeypatch):
    """No files and no downloads: stand-ins for the data, trunks without weights, each built once."""
    for name in INPUT_SHAPES:
        monkeypatch.setitem(registry._KINDS["dataset"], name, tiny_dataset(name))
    for kind in ("TimmTrunk", "TorchvisionTrunk"):
        trunk = functools.wraps(getattr(models, kind))(lambda kind=kind, **given: untrained(kind, given["name"]))
        monkeypatch.setitem(registry._KINDS["trunk"], kind, trunk)


@pytest.mark.parametrize("name", experiment_names())
def test_every_object_of_every_config_is_built_and_gives_a_loss(name, offline):
    for loss in losses_of(name):
        composed = compose(name, [f"loss={loss}", "general.device=cpu"])
        check_objects(composed)
        parts = build_parts(composed.config)
        assert type(parts.loss).__name__ == loss_class(loss)
        assert len(list(iter(parts.sampler))) % composed.config.general.batch_size == 0
        optimized = {p for o in parts.optimizers.values() for group in o.param_groups for p in group["params"]}
        assert set(parts.loss.parameters()) <= optimized
        assert len(parts.schedulers) == (len(parts.optimizers) if composed.config.schedule.scheduler else 0)
        embeddings = torch.randn(8, composed.config.model.embedding_size, requires_grad=True)
        labels = torch.arange(8) // 2
        mined = None if parts.miner is None else parts.miner(embeddings, labels)
        value = parts.loss(embeddings, labels, mined)
        value.backward()
        assert bool(value.isfinite()), loss
        assert bool(embeddings.grad.isfinite().all()), loss


# The small ones train ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Overrides that make each sibling's data tiny."""
    folder = tmp_path_factory.mktemp("data")
    fakes.features(folder / "features.npz", classes=90, each=3, width=8)
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(90), 3)
    images = generator.integers(0, 100, (len(labels), 28, 28), dtype=np.uint8)
    np.savez(folder / "drawings.npz", x_train=images, y_train=labels, x_test=images[:60], y_test=labels[:60])
    return {
        "glyphs": ["dataset.Glyphs.instances=2", "dataset.Glyphs.size=16", f"dataset.Glyphs.cache_dir={folder}"],
        "omniglot": [f"dataset.Omniglot.npz={folder / 'drawings.npz'}"],
        "features": [f"dataset.FeatureArrays.npz={folder / 'features.npz'}"],
    }


def train(name, loss, place, folder):
    overrides = [f"loss={loss}", "general.epochs=1", "general.device=cpu", *place]
    summary = run.start(compose(name, overrides).config, folder)
    assert summary["status"] == "finished"
    wanted = {"NMI", "recall_at_2"} if name.startswith("table2") else {"map_at_1000_with_query"}
    assert wanted | {"recall_at_1", "mean_average_precision_at_r"} <= set(summary["test"])
    assert all(0 <= value <= 1 for value in summary["test"].values())
    return summary


@pytest.mark.parametrize("table", TABLES)
def test_small_siblings_train_with_every_loss(table, places, tmp_path):
    name = f"{table}/features"
    for loss in compose(name).compare:
        train(name, loss, places["features"], tmp_path / loss)


@pytest.mark.parametrize("sibling", ["glyphs", "omniglot"])
@pytest.mark.parametrize("table", TABLES)
def test_small_siblings_train(table, sibling, places, tmp_path):
    name = f"{table}/{sibling}"
    train(name, compose(name).loss_variant, places[sibling], tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "key", "file"),
    [
        ("table1/omniglot", "dataset.Omniglot.npz", "omniglot28_small.npz"),
        ("table1/features", "dataset.FeatureArrays.npz", "cars196_features.npz"),
    ],
)
def test_real_data_train(name, key, file, tmp_path):
    if not (SHARED / file).exists():
        pytest.skip(f"{file} is not beside the repository")
    summary = train(name, "panc_el_nivmf", [f"{key}={SHARED / file}"], tmp_path / "run")
    assert summary["test"]["recall_at_1"] > 0.2  # chance is below 0.02
