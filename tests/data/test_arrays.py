"""Feature arrays and Omniglot from .npz files, and Omniglot through torchvision."""

from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import torch
from torchvision import datasets

from pml_nivmf.data import FeatureArrays, Omniglot

from .fakes import features, unpacks, write_image

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


def shared(name):
    path = SHARED / name
    return pytest.param(path, marks=pytest.mark.skipif(not path.is_file(), reason=f"{path} is not there"))


def stacked(part):
    return torch.stack([item for item, _ in part])


def test_features_are_standardised_by_what_is_trained_on(tmp_path):
    path = features(tmp_path / "f.npz")
    splits = FeatureArrays(path)
    assert splits.num_classes == 6
    assert splits.input_shape == (4,)
    train = stacked(splits.train_plain)
    assert torch.allclose(train.mean(0), torch.zeros(4), atol=1e-5)
    assert torch.allclose(train.std(0, correction=0), torch.ones(4), atol=1e-5)
    raw = np.load(path)
    kept = raw["x_train"][splits.train.indices.numpy()]
    expected = (raw["x_test"] - kept.mean(0)) / kept.std(0)
    assert np.allclose(stacked(splits.test).numpy(), expected, atol=1e-4)
    assert not torch.allclose(stacked(splits.validation).mean(0), torch.zeros(4), atol=1e-3)


def test_features_can_stay_as_they_are(tmp_path):
    path = features(tmp_path / "f.npz")
    splits = FeatureArrays(path, standardize=False)
    assert np.array_equal(stacked(splits.test).numpy(), np.load(path)["x_test"])
    assert splits.test.labels.tolist() == np.load(path)["y_train"].tolist()  # 7 … 14 became 0 … 7


def test_a_constant_axis_is_centred_and_not_blown_up(tmp_path):
    constant = np.tile(np.array([0.1, 1.0, 0.0, 12345.678], dtype=np.float32), (40, 1))
    constant[:, 1] = np.arange(40)
    splits = FeatureArrays(features(tmp_path / "f.npz", x_train=constant))
    train = stacked(splits.train_plain)
    assert torch.isfinite(train).all()
    assert train[:, [0, 2, 3]].abs().max() < 0.01
    assert train[:, 1].std(correction=0) == pytest.approx(1, abs=1e-5)


def test_training_draws_among_original_and_views(tmp_path):
    path = features(tmp_path / "f.npz", views=2)
    splits = FeatureArrays(path, standardize=False)
    raw, row = np.load(path), int(splits.train.indices[0])
    choices = np.stack([raw["x_train"][row], *raw["views_train"][:, row]])
    torch.manual_seed(0)
    drawn = [int(np.flatnonzero((choices == splits.train[0][0].numpy()).all(1))[0]) for _ in range(300)]
    assert all(70 < drawn.count(view) < 130 for view in range(3))
    torch.manual_seed(0)
    assert drawn[:50] == [int(np.flatnonzero((choices == splits.train[0][0].numpy()).all(1))[0]) for _ in range(50)]
    assert np.array_equal(splits.train_plain[0][0].numpy(), choices[0])
    held = int(splits.validation.indices[0])
    assert all(np.array_equal(splits.validation[0][0].numpy(), raw["x_train"][held]) for _ in range(10))


@pytest.mark.parametrize("standardize", [True, False])
def test_degraded_features_go_the_way_of_the_test_features(tmp_path, standardize):
    chance = np.random.default_rng(3)
    path = features(tmp_path / "f.npz", x_test_degraded=chance.normal(size=(40, 4)).astype(np.float16))
    splits, raw = FeatureArrays(path, standardize=standardize), np.load(path)
    clean, degraded = stacked(splits.test).numpy(), stacked(splits.test_degraded).numpy()
    slope = (clean[1] - clean[0]) / (raw["x_test"][1] - raw["x_test"][0])  # the map is the same for both
    assert np.allclose(degraded, clean[0] + (raw["x_test_degraded"] - raw["x_test"][0]) * slope, atol=1e-4)
    assert splits.test_degraded.labels.tolist() == splits.test.labels.tolist()
    assert FeatureArrays(features(tmp_path / "g.npz")).test_degraded is None


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"y_test": None}, "lacks y_test; it holds x_train, y_train, x_test"),
        ({"y_train": np.arange(39)}, r"x_train \(40, 4\) and y_train \(39,\) .* differ in length"),
        ({"y_train": np.zeros(40)}, "y_train .* 1-D array of integers, got float64"),
        ({"x_train": np.full((40, 4), np.nan)}, "x_train .* holds NaN or infinity"),
        ({"x_test": np.zeros((40, 5))}, r"equally wide, got \(40, 4\), \(40, 5\)"),
        ({"x_train": np.zeros((40, 4), dtype="U3")}, "x_train .* must hold numbers, got <U3"),
        ({"x_test": np.zeros((0, 4)), "y_test": np.zeros(0, dtype=int)}, "x_test .* is empty"),
        ({"views_train": np.zeros((2, 39, 4))}, r"views_train .* got float64 \(2, 39, 4\)"),
        ({"views_train": np.full((1, 40, 4), np.inf)}, "views_train .* holds NaN or infinity"),
        ({"x_test_degraded": np.zeros((39, 4))}, r"x_test_degraded .* \(40, 4\) like x_test, got float64 \(39, 4\)"),
        ({"x_test_degraded": np.full((40, 4), np.nan)}, "x_test_degraded .* holds NaN or infinity"),
        ({"x_train": np.array([{}] * 40, dtype=object)}, "cannot read .*[Oo]bject arrays"),
        ({"y_train": np.repeat([0, 1], 20)}, "of 2 classes leaves 0 to train on"),
    ],
)
def test_bad_features_are_named(tmp_path, changed, message):
    with pytest.raises(ValueError, match=message):
        FeatureArrays(features(tmp_path / "f.npz", **changed))


def test_missing_and_unreadable_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no file .*nothing.npz"):
        FeatureArrays(tmp_path / "nothing.npz")
    whole = features(tmp_path / "f.npz").read_bytes()
    for broken in (b"", b"text", whole[: len(whole) // 2]):
        (tmp_path / "broken.npz").write_bytes(broken)
        with pytest.raises(ValueError, match=r"cannot read .*broken.npz"):
            FeatureArrays(tmp_path / "broken.npz")
    np.save(tmp_path / "single.npy", np.ones(3))
    with pytest.raises(ValueError, match=r"single array, not an .npz"):
        FeatureArrays(tmp_path / "single.npy")


@pytest.mark.parametrize("path", [shared("cars196_features.npz")])
def test_real_car_features(path):
    splits = FeatureArrays(path)
    assert splits.num_classes == 98 - 24
    assert splits.input_shape == (512,)
    assert len(splits.train) + len(splits.validation) == 8052
    assert len(splits.test) == 8125
    assert int(splits.test.labels.max()) == 97
    assert stacked(splits.train_plain).std(0, correction=0).sub(1).abs().max() < 1e-3
    assert splits.train[0][0].dtype == torch.float32


def test_cosine_retrieval_of_the_untouched_car_features_is_the_readme_s():
    path = SHARED / "cars196_features.npz"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    test = FeatureArrays(path, standardize=False).test
    x = torch.nn.functional.normalize(stacked(test))
    nearest = torch.cat([(rows @ x.T).topk(2).indices[:, 1] for rows in x.split(1000)])
    assert (test.labels[nearest] == test.labels).float().mean() == pytest.approx(0.470, abs=0.002)


def drawings(path, bright=True, dtype=np.uint8, **changed):
    """Eight characters of three instances: a bright stroke each on a dark page, or the other way round."""
    images = np.zeros((24, 28, 28))
    for i in range(24):
        images[i, 5:20, i // 3 + 6] = 1.0
    images = images if bright else 1 - images
    images = (images * 255).astype(dtype) if dtype == np.uint8 else images.astype(dtype)
    labels = np.repeat(np.arange(8), 3)
    arrays = {"x_train": images, "y_train": labels, "x_test": images, "y_test": labels, **changed}
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_omniglot_from_npz(tmp_path, dtype):
    splits = Omniglot(npz=drawings(tmp_path / "o.npz", dtype=dtype))
    assert splits.num_classes == 6
    assert splits.input_shape == (1, 28, 28)
    plain = stacked(splits.train_plain)
    assert plain.dtype == torch.float32
    assert sorted(plain.unique().tolist()) == [0.0, 1.0]
    torch.manual_seed(0)
    moved = stacked(splits.train)
    torch.manual_seed(0)
    assert torch.equal(moved, stacked(splits.train))
    assert not torch.equal(moved, plain)
    assert torch.equal(moved.sum((1, 2, 3)), plain.sum((1, 2, 3)))  # shifted, whole
    assert torch.equal(stacked(Omniglot(npz=tmp_path / "o.npz", shift=0).train), plain)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"bright": False}, "must be bright on a dark page: invert"),
        ({"x_test": np.zeros((24, 32, 32), np.uint8)}, r"x_test .* must be \(items, 28, 28\), got \(24, 32, 32\)"),
        ({"x_train": np.full((24, 28, 28), 7.0)}, r"floats in \[0, 1\], got float64 in \[7.0, 7.0\]"),
        ({"x_train": np.zeros((24, 28, 28), np.int64)}, "must be bytes or floats"),
    ],
)
def test_bad_drawings_are_named(tmp_path, changed, message):
    with pytest.raises(ValueError, match=message):
        Omniglot(npz=drawings(tmp_path / "o.npz", **changed))


def test_omniglot_takes_one_source(tmp_path):
    for arguments in ({}, {"root": tmp_path, "npz": tmp_path / "o.npz"}):
        with pytest.raises(ValueError, match=r"either root .* or npz"):
            Omniglot(**arguments)
    with pytest.raises(ValueError, match="does not go with npz"):
        Omniglot(npz=tmp_path / "o.npz", download=True)


def test_omniglot_missing_names_folder_and_remedy(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"omniglot-py .*`download: true`"):
        Omniglot(root=tmp_path / "nowhere")


@unpacks
def test_a_failed_download_of_omniglot_says_from_where_and_what_to_do(tmp_path, monkeypatch):
    def fail(self):
        raise URLError("no network")

    monkeypatch.setattr(datasets.Omniglot, "download", fail)
    with pytest.raises(OSError, match=r"github.* into .*new failed: .*no network.*Try again"):
        Omniglot(root=tmp_path / "new", download=True)


@pytest.fixture
def omniglot_folder(tmp_path, monkeypatch):
    """Two alphabets of four characters to train, one to test; a character's ink is ten times its number."""
    monkeypatch.setattr(datasets.Omniglot, "_check_integrity", lambda self: True)  # no archive beside the folders
    for part, alphabets in (("images_background", ("Greek", "Latin")), ("images_evaluation", ("Angelic",))):
        for alphabet in alphabets:
            for character in range(4):
                for i in range(2):
                    folder = tmp_path / "omniglot-py" / part / alphabet / f"character{character:02d}"
                    write_image(folder / f"{character}_{i}.png", shade=255 - 10 * character, mode="L", size=(105, 105))
    return tmp_path


def test_omniglot_from_torchvision_is_inverted_and_small(omniglot_folder):
    splits = Omniglot(root=omniglot_folder)
    assert splits.num_classes == 6
    assert splits.input_shape == (1, 28, 28)
    assert splits.test.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    for image, label in splits.test:
        assert torch.allclose(image, torch.full((1, 28, 28), 10 * label / 255), atol=1e-6)


def test_omniglot_does_not_depend_on_the_file_system_s_order(omniglot_folder, monkeypatch):
    from torchvision.datasets import omniglot

    plain = Omniglot(root=omniglot_folder)
    for name in ("list_dir", "list_files"):
        original = getattr(omniglot, name)
        monkeypatch.setattr(omniglot, name, lambda *args, listing=original: sorted(listing(*args), reverse=True))
    turned = Omniglot(root=omniglot_folder)
    assert torch.equal(stacked(plain.validation), stacked(turned.validation))
    assert torch.equal(stacked(plain.test), stacked(turned.test))
    assert torch.equal(plain.test.labels, turned.test.labels)


@pytest.mark.parametrize("path", [shared("omniglot28_small.npz")])
def test_real_omniglot(path):
    splits = Omniglot(npz=path)
    assert splits.num_classes == 138 - 34
    assert torch.equal(torch.bincount(splits.test.labels), torch.full((104,), 20))
    assert len(splits.train) + len(splits.validation) == 2760
    plain = stacked(splits.train_plain)
    assert plain.shape[1:] == (1, 28, 28)
    assert plain.amin() == 0
    assert plain.amax() == 1
    assert plain.mean() < 0.3
