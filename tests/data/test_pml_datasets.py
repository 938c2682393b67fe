"""CUB, Cars196 and Stanford Online Products on tiny folders in PML's layouts."""

import pytest
import torch
from pytorch_metric_learning import datasets as pml_datasets
from torchvision import transforms as T

from pml_nivmf.data import CUB, Cars196, StanfordOnlineProducts
from pml_nivmf.data.images import ImagePaths

from .fakes import fake_cars, fake_cub, fake_sop, unpacks, write_image

SMALL = {"crop_size": 16, "resize": 20}
BUILDERS = pytest.mark.parametrize("build", [CUB, Cars196, StanfordOnlineProducts])


def test_cub_parts(tmp_path):
    splits = CUB(fake_cub(tmp_path), **SMALL)
    assert splits.num_classes == 6  # 8 training classes, 2 of them held out
    assert splits.input_shape == (3, 16, 16)
    assert torch.bincount(splits.train.labels).tolist() == [2] * 6
    assert torch.bincount(splits.validation.labels).tolist() == [2] * 2
    assert torch.bincount(splits.test.labels).tolist() == [2] * 3


def test_cub_parts_share_no_bird(tmp_path):
    splits = CUB(fake_cub(tmp_path), **SMALL)
    birds = [
        {part.items.paths[i].split("/")[-2] for i in part.indices.tolist()}
        for part in (splits.train, splits.validation, splits.test)
    ]
    assert [len(b) for b in birds] == [6, 2, 3]
    assert len(set.union(*birds)) == 11
    assert birds[2] == {"101.Bird", "102.Bird", "103.Bird"}


def test_grey_and_colour_images_become_normalised_rgb(tmp_path):
    splits = CUB(fake_cub(tmp_path), **SMALL)
    mean, deviation = (torch.tensor(v)[:, None, None] for v in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    for part in (splits.train, splits.train_plain, splits.validation, splits.test):
        for image, _ in part:
            assert image.shape == (3, 16, 16)
            assert image.dtype == torch.float32
    grey, colour = (splits.test[i][0] * deviation + mean for i in (0, 1))
    assert torch.allclose(grey, torch.full_like(grey, 101 / 255), atol=0.01)
    assert torch.allclose(colour.mean((1, 2)), torch.tensor([101.0, 20.0, 40.0]) / 255, atol=0.02)


def test_evaluation_resizes_and_crops_the_centre_as_the_paper(tmp_path):
    splits = CUB(fake_cub(tmp_path))
    assert splits.input_shape == (3, 224, 224)
    steps = splits.test.transform.transforms
    assert (steps[0].size, tuple(steps[1].size)) == (256, (224, 224))
    assert [type(step) for step in splits.train.transform.transforms[:2]] == [
        T.RandomResizedCrop,
        T.RandomHorizontalFlip,
    ]
    assert splits.test[0][0].shape == (3, 224, 224)


def test_augmentation_follows_torch_s_generator(tmp_path):
    root = fake_cub(tmp_path)
    path = next(iter(sorted((root / "CUB_200_2011" / "images").rglob("*.jpg"))))
    for file in path.parent.parent.rglob("*.jpg"):  # a gradient, so that crops differ
        T.functional.to_pil_image(torch.linspace(0, 1, 1200).reshape(1, 30, 40)).save(file)
    train = CUB(root, **SMALL).train
    torch.manual_seed(0)
    first, second = train[0][0], train[0][0]
    torch.manual_seed(0)
    assert torch.equal(first, train[0][0])
    assert not torch.equal(first, second)


def test_cars_parts(tmp_path):
    splits = Cars196(fake_cars(tmp_path), **SMALL)
    assert splits.num_classes == 4
    assert torch.bincount(splits.validation.labels).tolist() == [2, 2]
    assert torch.bincount(splits.test.labels).tolist() == [2, 2, 2]
    assert splits.test[5][0].shape == (3, 16, 16)


def test_sop_parts(tmp_path):
    splits = StanfordOnlineProducts(fake_sop(tmp_path), **SMALL)
    assert splits.num_classes == 4
    assert torch.bincount(splits.validation.labels).tolist() == [2, 2]
    assert torch.bincount(splits.test.labels).tolist() == [2, 2, 2]
    assert splits.train[0][0].shape == (3, 16, 16)


@BUILDERS
def test_missing_data_names_the_folder_and_the_remedy(build, tmp_path):
    for root in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(FileNotFoundError) as caught:
            build(root)
        assert str(root) in str(caught.value)
        assert "`download: true`" in str(caught.value)


def test_download_into_a_folder_with_something_else_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(pml_datasets.CUB, "download_and_remove", lambda self: pytest.fail("downloaded"))
    (tmp_path / "CUB_200_2011.tgz").write_bytes(b"half of it")
    with pytest.raises(FileNotFoundError, match="empty this one or name another"):
        CUB(tmp_path, download=True)


@unpacks
def test_download_fetches_into_a_new_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(pml_datasets.CUB, "download_and_remove", lambda self: fake_cub(tmp_path / "new"))
    assert CUB(tmp_path / "new", download=True, **SMALL).num_classes == 6
    assert CUB(tmp_path / "new", download=True, **SMALL).num_classes == 6  # and once only


@unpacks
def test_a_failed_download_says_what_to_do(tmp_path, monkeypatch):
    def fail(self):
        raise OSError("no network")

    monkeypatch.setattr(pml_datasets.CUB, "download_and_remove", fail)
    with pytest.raises(RuntimeError, match=r"no network.*Empty the folder and try again"):
        CUB(tmp_path / "new", download=True)


def test_lists_without_images_are_noticed_at_once(tmp_path):
    root = fake_cub(tmp_path)
    (root / "CUB_200_2011" / "images" / "001.Bird" / "0.jpg").unlink()
    with pytest.raises(FileNotFoundError, match=r"001\.Bird/0\.jpg is listed but missing"):
        CUB(root)


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P"])
def test_every_kind_of_image_is_read_as_rgb(tmp_path, mode):
    image = ImagePaths([write_image(tmp_path / "a.png", 77, mode)])[0]
    assert image.mode == "RGB"
    assert image.size == (40, 30)
