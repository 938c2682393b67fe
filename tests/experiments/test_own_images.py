"""`pml-nivmf train FOLDER` fits its settings to any folder of images."""

import json
from pathlib import Path

import pytest
import torch
from pytorch_metric_learning.samplers import MPerClassSampler
from torch.utils.data import DataLoader

from pml_nivmf import cli
from pml_nivmf.data.images import ImagePaths
from pml_nivmf.data.splits import hold_out_classes
from pml_nivmf.experiments import own_images, registry
from pml_nivmf.experiments.config import ConfigError, compose
from pml_nivmf.experiments.folders import results_folder

from ..data.fakes import write_image

WITHOUT_DOWNLOAD = "model.trunk.TimmTrunk.pretrained=false"


def folder_of(root, classes, each=2):
    for number in range(classes):
        for image in range(each):
            write_image(
                root / f"Klasse {number} ü" / f"{image} 猫.png", 20 * number % 256, mode="L" if image else "RGBA"
            )
    return root


@pytest.fixture
def offline(monkeypatch):
    build = registry.build

    def without_timm(kind, config, path, **injected):
        if "TimmTrunk" in config:
            raise ConfigError("no route to the hub")
        return build(kind, config, path, **injected)

    monkeypatch.setattr(registry, "build", without_timm)


def settings(root, *overrides):
    overrides = [f"dataset.ImageFolder.root={root}", *overrides]
    return compose(*own_images.fitted("own_images", overrides)).config


@pytest.mark.parametrize("classes", [4, 5, 8, 9, 12, 130])
def test_sampler_batch_and_validation_fit_the_number_of_classes(tmp_path, classes):
    config = settings(folder_of(tmp_path, classes), WITHOUT_DOWNLOAD)
    has_validation = config.evaluation.select_on == "validation"
    assert has_validation == (classes >= 9)
    test = max(2, round(0.33 * classes))
    training = classes - test - has_validation * max(2, round(0.25 * (classes - test)))
    labels = torch.arange(training).repeat_interleave(2)
    batch_size = config.general.batch_size
    assert 60 <= batch_size <= 64
    sampler = MPerClassSampler(labels, config.sampler.MPerClassSampler.m, batch_size, max(len(labels), batch_size))
    assert len(labels[list(sampler)][:batch_size].unique()) == min(training, 32)


@pytest.mark.parametrize("part", ["train", "validation", "test"])
def test_one_image_per_class_is_refused_before_training(tmp_path, offline, part):
    is_held_out = hold_out_classes(torch.arange(8), 0.25, seed=0).tolist()
    for number, role in enumerate([*("validation" if held else "train" for held in is_held_out), "test", "test"]):
        folder = tmp_path / ("test" if role == "test" else "train") / str(number)
        for image in range(1 if role == part else 2):
            write_image(folder / f"{image}.png", 20 * number)
    with pytest.raises(ConfigError, match=f"one image per {part} class is not enough"):
        settings(tmp_path)


def test_choices_of_the_user_win_and_images_are_read_once(tmp_path, offline, monkeypatch):
    monkeypatch.chdir(tmp_path)
    root = folder_of(Path("images"), 9)
    (root / "broken.png").write_text("no class folder")
    (root / "Klasse 0 ü" / "broken.png").write_text("no image")
    with pytest.raises(ValueError, match=r"broken\.png: cannot identify .*\n.*ImageFolder\.skip_bad=true"):
        settings(root)
    config = settings(root, "dataset.ImageFolder.skip_bad=true", "general.epochs=3", "sampler=shuffle")
    assert config.dataset.ImageFolder.root == str(tmp_path / "images"), "the run is loaded from other folders, too"
    assert config.dataset.ImageFolder.skip_bad == ["Klasse 0 ü/broken.png"]
    assert config.general.epochs == 3
    assert not config.sampler
    assert list(config.model.trunk) == ["ConvNet"], "no weights"
    assert own_images.fitted("glyphs", ["general.epochs=3"]) == ("glyphs", ["general.epochs=3"])


@pytest.mark.parametrize("loss", ["proxy_nca", "proxy_anchor", "el_nivmf", "panc_el_nivmf"])
def test_a_pretrained_trunk_has_the_settings_that_were_tested_on_photographs(tmp_path, loss):
    weights = "model.trunk.TimmTrunk.weights_file=lite0.pth"
    config = settings(folder_of(tmp_path, 9), weights, f"loss={loss}")
    tested = compose("results/photographs", [weights, f"loss={loss}"]).config
    assert (config.loss, config.optimizers) == (tested.loss, tested.optimizers)
    assert config.model.fit_norms


@pytest.mark.parametrize("override", ["model.trunk.TimmTrunk.weights_file=lite0.pth", "general.device=cpu"])
def test_the_optimizer_of_the_user_wins_with_and_without_weights(tmp_path, offline, override):
    config = settings(folder_of(tmp_path, 9), override, "optimizers=paper")
    assert config.optimizers.model == compose("glyphs", ["optimizers=paper"]).config.optimizers.model


def test_a_folder_of_four_classes_becomes_a_report(tmp_path, monkeypatch, capfd, offline):
    monkeypatch.chdir(tmp_path)
    folder = folder_of(tmp_path / "Fotos 猫", 4)
    assert cli.main(["train", str(folder), "general.epochs=2", "--seeds", "1", "--jobs", "1"]) == 0
    out, err = capfd.readouterr()
    assert "ImageNet weights cannot be downloaded: a small network is trained" in err
    assert "4 classes: 2 train, 2 test · 8 images · ConvNet: 2 runs of 2 epochs · about " in out
    results = tmp_path / "runs" / "Fotos_猫-epochs-2"
    assert [row["loss"] for row in json.loads((results / "comparison.json").read_text())] == [
        "proxy_anchor",
        "panc_el_nivmf",
    ]
    assert "Test classes enrolled with at most 5 images each" in out
    page = (results / "report.html").read_text()
    assert "Test classes enrolled with at most 5 images each" in page
    assert sum(f">Klasse {number} ü<" in page for number in range(4)) == 2, "the test classes"


def test_results_have_the_name_of_the_images_folder_also_below_dir():
    overrides = ["dataset.ImageFolder.crop_size=32", 'dataset.ImageFolder.root="data/Fotos 猫.v2"']
    assert results_folder("out", "own_images", overrides) == Path("out/Fotos_猫.v2")
    assert results_folder(None, "own_images", overrides) == Path("runs/Fotos_猫.v2-crop_size-32")
    assert results_folder("out", "table1/cub", overrides) == Path("out/table1/cub")


def test_an_error_in_a_loader_s_worker_is_one_line_that_names_the_file(tmp_path, capsys):
    (tmp_path / "a.png").write_text("no image")
    with pytest.raises(OSError, match="DataLoader worker") as error:
        list(DataLoader(ImagePaths([tmp_path / "a.png"]), num_workers=1))
    assert cli._report(error.value, debug=False) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"pml-nivmf: cannot read the image {tmp_path / 'a.png'} (")
