"""Fine-tuning on stored outputs of a trunk's frozen part gives what training on the images gives."""

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from pml_nivmf import cli
from pml_nivmf.experiments import build, load_run, run
from pml_nivmf.experiments.config import ConfigError, compose

from ..data import fakes


@pytest.fixture
def config(tmp_path):
    root = fakes.fake_cub(tmp_path / "cub")
    trunk = "{TimmTrunk: {name: test_resnet, pretrained: false, frozen_until: layer4}}"

    def composed(*overrides):
        return compose(
            "glyphs",
            [
                "dataset=cub",
                f"dataset.CUB.root={root}",
                "dataset.CUB.crop_size=32",
                "dataset.CUB.resize=36",
                f"model.trunk~OVERRIDE~={trunk}",
                "model.cached_views=2",
                f"model.cache_dir={tmp_path / 'cache'}",
                "general.epochs=1",
                "general.batch_size=4",
                "sampler=shuffle",
                *overrides,
            ],
        ).config

    return composed


def test_maps_replace_images(config, tmp_path, capfd):
    torch.manual_seed(0)
    build.compute_maps(config())
    assert "views of the images: 100%" in capfd.readouterr().err
    parts = build.build_parts(config())
    images = build.build_parts(config("model.cached_views=null"))
    images.trunk.load_state_dict(parts.trunk.state_dict())
    shape = tuple(parts.data.train[0][0].shape)
    assert shape == parts.data.input_shape != images.data.input_shape
    assert parts.data.train.items.shape[1] == 3  # the original and two views
    for name in ("test", "validation", "train_plain"):
        pairs = zip(getattr(parts.data, name), getattr(images.data, name), strict=True)
        assert all(map_label == label for (_, map_label), (_, label) in pairs)
    parts.trunk.eval(), images.trunk.eval()
    with torch.no_grad():
        features = [part.trunk(part.data.test[0][0][None]) for part in (parts, images)]
    torch.testing.assert_close(*features, rtol=1e-2, atol=1e-2)  # maps are stored in 16 bits
    summary = run.start(config(), tmp_path / "run")
    assert summary["uncertainty"]["degradation"]["items"] == len(parts.data.test)
    assert list(summary["uncertainty"]["degradation"]["kinds"]) == ["crops of a quarter of the area"]
    assert (tmp_path / "run" / "thumbnails.npz").exists()
    assert cli.main(["export", str(tmp_path / "run"), str(tmp_path / "model.pt")]) == 0
    loaded = load_run(tmp_path / "run")
    batch, maps = (torch.stack([data.test[index][0] for index in range(3)]) for data in (loaded.parts.data, parts.data))
    exported = torch.export.load(tmp_path / "model.pt").module()
    embeddings = loaded.embedder(loaded.trunk(batch))  # as README has it
    loaded.trunk.takes_maps = True
    torch.testing.assert_close(loaded.parts.embed(maps), embeddings, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(exported(batch), embeddings, rtol=1e-3, atol=1e-3)
    shutil.rmtree(tmp_path / "cache")
    load_run(tmp_path / "run")
    assert not (tmp_path / "cache").exists(), "a loaded run takes images: no views are computed for it"


def test_crops_of_training_images_are_stored(config, tmp_path):
    generator = np.random.default_rng(0)
    for path in (tmp_path / "cub").rglob("*.jpg"):
        Image.fromarray(generator.integers(0, 256, (30, 40, 3), dtype=np.uint8)).save(path)
    parts = build.build_parts(config())
    images = build.build_parts(config("model.fit_norms=true", "model.cached_views=null"))
    assert len(parts.data.train_degraded) == len(parts.data.train_plain)
    crop, whole, expected = (
        items[1][0] for items in (parts.data.train_degraded, parts.data.train_plain, images.data.train_degraded)
    )
    images.trunk.load_state_dict(parts.trunk.state_dict())
    with torch.no_grad():
        expected = images.trunk.lower(expected[None])[0]
    torch.testing.assert_close(crop, expected, rtol=1e-2, atol=1e-3 * float(expected.abs().max()))
    assert float((crop - whole).abs().max()) > 0.1 * float(expected.abs().max())


def test_without_a_frozen_part_views_of_images_are_stored(config):
    overrides = ["model.trunk.TimmTrunk.frozen_until=null"]
    stored, images = (build.build_parts(config(*overrides, *more)) for more in ([], ["model.cached_views=null"]))
    assert stored.data.train.items.shape == (len(images.data.train), 3, 3, 32, 32)
    torch.testing.assert_close(stored.data.test[0][0], images.data.test[0][0], rtol=1e-3, atol=1e-3)


def test_maps_need_the_same_images(config, tmp_path):
    build.compute_maps(config())
    (file,) = (tmp_path / "cache").glob("*.pt")
    maps = torch.load(file)
    torch.save(maps | {"labels": maps["labels"][1:]}, file)
    with pytest.raises(ConfigError, match="maps of other images: delete it"):
        build.build_parts(config())
