"""Galleries in files."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from pml_nivmf.inference import ClassGallery, WithinClassShape
from tests.inference.galleries import draw, enrol


@pytest.fixture(scope="module")
def gallery():
    embeddings, labels, _ = draw(classes=8, per_class=6)
    gallery = ClassGallery(WithinClassShape.from_embeddings(embeddings, labels), index="IVF2,Flat")
    gallery.add(embeddings, ["é", "b", *range(6)] * 6, names=[f"{row}.png" for row in range(48)])
    return gallery.fit()


def test_a_file_has_everything(gallery, tmp_path):
    queries = torch.randn(9, 16)
    gallery.save(tmp_path / "gallery.safetensors")
    loaded = ClassGallery.load(tmp_path / "gallery.safetensors")
    assert loaded.labels == gallery.labels == ["é", "b", *range(6)]
    assert loaded.identify(queries) == gallery.identify(queries)
    assert loaded.label_sets(queries) == gallery.label_sets(queries)
    loaded.add(queries[:1], ["new"])
    assert "new" in loaded.labels
    assert torch.equal(loaded.fit()(queries), loaded.fit()(queries))  # with the prior and without randomness
    assert loaded.index == "IVF2,Flat"
    assert torch.equal(loaded.prior.one_shot.calibration, gallery.prior.one_shot.calibration)


def test_a_gallery_that_is_not_fitted_can_be_saved(tmp_path):
    gallery = enrol(torch.eye(3), [np.int64(1), 2, "3"])
    gallery.save(tmp_path / "g")
    assert ClassGallery.load(tmp_path / "g").labels == [1, 2, "3"]
    with pytest.raises(ValueError, match="call fit"):
        ClassGallery.load(tmp_path / "g")(torch.eye(3))


def test_a_failed_save_leaves_the_old_file(gallery, tmp_path, monkeypatch):
    path = tmp_path / "gallery.safetensors"
    gallery.save(path)
    before = path.read_bytes()
    monkeypatch.setattr("os.fsync", lambda *_: (_ for _ in ()).throw(OSError("no space left")))
    with pytest.raises(OSError, match="no space left"):
        gallery.save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_other_files_are_refused(gallery, tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no gallery"):
        ClassGallery.load(tmp_path / "missing")
    save_file({"x": torch.ones(1)}, tmp_path / "other")
    with pytest.raises(ValueError, match="not a gallery of this version"):
        ClassGallery.load(tmp_path / "other")
    gallery.save(tmp_path / "whole")
    (tmp_path / "part").write_bytes((tmp_path / "whole").read_bytes()[:-100])
    with pytest.raises(ValueError, match="part cannot be read"):
        ClassGallery.load(tmp_path / "part")
