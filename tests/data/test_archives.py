"""Downloads that would write elsewhere or fill the disk are not unpacked, whichever library unpacks them."""

import io
import shutil
import tarfile
import zipfile

import numpy as np
import pytest
from pytorch_metric_learning.datasets import cars196, cub

from pml_nivmf.data import CUB, Cars196, FeatureArrays, archives, arrays
from pml_nivmf.models import TimmTrunk

from . import fakes
from .fakes import unpacks


def served(monkeypatch, module, archive):
    """PML downloads `archive`."""
    monkeypatch.setattr(module, "_urlretrieve", lambda url, filename: shutil.copy(archive, filename))


def tar_with(path, *members):
    with tarfile.open(path, "w:gz") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size) if member.isreg() else None)
    return path


def entry(name, kind=tarfile.REGTYPE, target="", size=1):
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.size = kind, target, size if kind == tarfile.REGTYPE else 0
    return member


@unpacks
@pytest.mark.parametrize(
    "members",
    [
        [entry("../outside")],
        [entry("link", tarfile.SYMTYPE, "../.."), entry("link/outside")],
        [entry("hard", tarfile.LNKTYPE, "../../outside")],
        [entry("pipe", tarfile.FIFOTYPE)],
    ],
    ids=["dots", "link", "hard link", "device"],
)
def test_tar_that_leads_elsewhere(tmp_path, monkeypatch, members):
    served(monkeypatch, cub, tar_with(tmp_path / "bad.tgz", *members))
    with pytest.raises(RuntimeError, match=r"the download of .* failed"):
        CUB(tmp_path / "deep" / "root", download=True)
    assert not (tmp_path / "deep" / "outside").exists()
    assert not (tmp_path / "outside").exists()


@unpacks
def test_bombs(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MOST_BYTES", 10_000)
    served(monkeypatch, cub, tar_with(tmp_path / "bomb.tgz", *(entry(f"f{i}", size=1000) for i in range(20))))
    with pytest.raises(RuntimeError, match="10,000 bytes: it is not unpacked"):
        CUB(tmp_path / "cub", download=True)
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("f", b"0" * 20_000)
    served(monkeypatch, cars196, tmp_path / "bomb.zip")
    with pytest.raises(RuntimeError, match="10,000 bytes: it is not unpacked"):
        Cars196(tmp_path / "cars", download=True)
    assert not (tmp_path / "cars" / "f").exists()


@unpacks
def test_archive_larger_than_the_disk(tmp_path, monkeypatch):
    free = shutil.disk_usage(tmp_path)._replace(free=500)
    monkeypatch.setattr(archives.shutil, "disk_usage", lambda path: free)
    served(monkeypatch, cub, tar_with(tmp_path / "big.tgz", entry("f", size=1000)))
    with pytest.raises(RuntimeError, match="needs 1,000 bytes more, but the disk has 500"):
        CUB(tmp_path / "cub", download=True)


@unpacks
def test_good_archive_and_no_guard_afterwards(tmp_path, monkeypatch):
    fakes.fake_cub(tmp_path / "whole", train_classes=8, test_classes=3, images=2)
    with tarfile.open(tmp_path / "cub.tgz", "w:gz") as tar:
        tar.add(tmp_path / "whole" / "CUB_200_2011", "CUB_200_2011")
    served(monkeypatch, cub, tmp_path / "cub.tgz")
    before = zipfile.ZipFile.extractall
    assert CUB(tmp_path / "new", download=True, crop_size=8, resize=10).num_classes == 6
    assert zipfile.ZipFile.extractall is before
    assert getattr(tarfile.TarFile, "extraction_filter", None) is None


def test_an_old_python_unpacks_nothing(tmp_path, monkeypatch):
    monkeypatch.delattr(tarfile, "data_filter", raising=False)
    with pytest.raises(RuntimeError, match=r"unpacks archives unguarded: use 3\.10\.12, 3\.11\.4 or newer"):
        CUB(tmp_path / "new", download=True)


def test_arrays_that_unpack_to_far_more_than_they_are(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "zeros.npz", x_train=np.zeros((1000, 1000)))
    monkeypatch.setattr(arrays, "_LARGE", 2**20)
    with pytest.raises(ValueError, match="it would unpack to 8,000,128 bytes, over 100 times its own size"):
        FeatureArrays(tmp_path / "zeros.npz")


def test_objects_in_arrays_are_not_unpickled(tmp_path):
    objects = np.array([{"a": 1}] * 40, dtype=object)
    fakes.features(tmp_path / "objects.npz", y_train=objects)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        FeatureArrays(tmp_path / "objects.npz")


@pytest.mark.parametrize("argument", ["checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay"])
def test_timm_loads_files_through_us_only(argument):
    with pytest.raises(ValueError, match=f"{argument} cannot be chosen: load a local file with weights_file"):
        TimmTrunk("resnet10t", pretrained=False, **{argument: "file.pth"})
