"""CUB, Cars196 and Stanford Online Products on tiny folders in PML's layouts."""

import shutil
import tarfile

import pytest
import torch
from pytorch_metric_learning.datasets import cars196, cub

from pml_nivmf.data import CUB, Cars196, StanfordOnlineProducts

from .fakes import fake_cars, fake_cub, fake_sop

SMALL = {"crop_size": 16, "resize": 20}


@pytest.mark.parametrize(
    ("build", "fake", "classes"), [(CUB, fake_cub, 8), (Cars196, fake_cars, 6), (StanfordOnlineProducts, fake_sop, 6)]
)
def test_parts(tmp_path, build, fake, classes):
    splits = build(fake(tmp_path), **SMALL)
    assert splits.num_classes == classes - 2
    assert splits.input_shape == (3, 16, 16)
    for part, count in ((splits.train, classes - 2), (splits.validation, 2), (splits.test, 3)):
        assert torch.bincount(part.labels).tolist() == [2] * count
        assert part[0][0].shape == (3, 16, 16)


def test_grey_and_colour_images_become_normalised_rgb(tmp_path):
    splits = CUB(fake_cub(tmp_path), **SMALL)
    mean, std = (torch.tensor(v)[:, None, None] for v in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    grey, colour = (splits.test[i][0] * std + mean for i in (0, 1))
    assert torch.allclose(grey, torch.full_like(grey, 101 / 255), atol=0.01)
    assert torch.allclose(colour.mean((1, 2)), torch.tensor([101.0, 20.0, 40.0]) / 255, atol=0.02)


@pytest.mark.parametrize("build", [CUB, Cars196, StanfordOnlineProducts])
def test_missing_data(build, tmp_path):
    for root in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(FileNotFoundError, match=rf"{root} does not contain {build.__name__}, .*`download: true`"):
            build(root)


@pytest.fixture
def serve(monkeypatch):
    """A function that lets every download give this file."""

    def serve(archive):
        copy = lambda url, filename: shutil.copy(archive, filename)  # noqa: E731
        for module in (cars196, cub):
            monkeypatch.setattr(module, "_urlretrieve", copy)

    return serve


@pytest.mark.parametrize(("build", "fake", "kind"), [(CUB, fake_cub, "gztar"), (Cars196, fake_cars, "zip")])
def test_what_is_missing_is_downloaded_next_to_other_data(tmp_path, serve, build, fake, kind):
    serve(shutil.make_archive(str(tmp_path / "archive"), kind, fake(tmp_path / "source")))
    fake_sop(tmp_path / "new")
    assert build(tmp_path / "new", download=True, **SMALL).num_classes in (4, 6)
    serve(tmp_path / "nothing")
    build(tmp_path / "new", download=True, **SMALL)
    names, unpacked = ({path.name for path in (tmp_path / folder).iterdir()} for folder in ("new", "source"))
    assert names == unpacked | {"Stanford_Online_Products"}, "the archive is removed"


def test_a_failed_download_leaves_nothing(tmp_path, serve):
    (tmp_path / "truncated").write_bytes(b"half")
    serve(tmp_path / "truncated")
    with pytest.raises(tarfile.ReadError):
        CUB(tmp_path / "new", download=True)
    assert not list((tmp_path / "new").iterdir())
