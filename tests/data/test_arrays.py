"""Features and maps from .npz files."""

import numpy as np
import pytest
import torch

from pml_nivmf.data import FeatureArrays, MapArrays

from .fakes import features, stacked


def test_features_are_standardised_with_the_training_classes(tmp_path):
    path = features(tmp_path / "f.npz")
    splits, raw = FeatureArrays(path), np.load(path)
    assert splits.num_classes == 6
    assert splits.input_shape == (4,)
    originals = raw["x_train"][splits.train.indices.numpy()]
    for part, array in ((splits.test, raw["x_test"]), (splits.train_plain, originals)):
        expected = (array - originals.mean(0)) / originals.std(0)
        assert np.allclose(stacked(part).numpy(), expected, atol=1e-4)


def test_constant_features_are_centred_and_not_divided(tmp_path):
    constant = np.tile(np.array([0.1, 1.0, 0.0, 12345.678], dtype=np.float32), (40, 1))
    constant[:, 1] = np.arange(40)
    train = stacked(FeatureArrays(features(tmp_path / "f.npz", x_train=constant)).train_plain)
    assert train[:, [0, 2, 3]].abs().max() < 0.01
    assert train[:, 1].std(correction=0) == pytest.approx(1, abs=1e-5)


def test_training_draws_from_the_original_and_its_views(tmp_path):
    path = features(tmp_path / "f.npz", views=2)
    splits, raw = FeatureArrays(path, standardize=False), np.load(path)
    row, validation_row = int(splits.train.indices[0]), int(splits.validation.indices[0])
    choices = np.stack([raw["x_train"][row], *raw["views_train"][:, row]])
    torch.manual_seed(0)
    drawn = [int(np.flatnonzero((choices == splits.train[0][0].numpy()).all(1))[0]) for _ in range(300)]
    assert all(70 < drawn.count(view) < 130 for view in range(3))
    assert np.array_equal(splits.train_plain[0][0].numpy(), choices[0])
    assert all(np.array_equal(splits.validation[0][0].numpy(), raw["x_train"][validation_row]) for _ in range(10))


@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("part", ["train", "test"])
def test_degraded_features_get_the_map_of_the_others(tmp_path, standardize, part):
    degraded = np.random.default_rng(3).normal(size=(40, 4)).astype(np.float16)
    path = features(tmp_path / "f.npz", **{f"x_{part}_degraded": degraded})
    splits = FeatureArrays(path, standardize=standardize)
    plain, worse = getattr(splits, "train_plain" if part == "train" else part), getattr(splits, f"{part}_degraded")
    rows = plain.indices.numpy()
    clean, raw = stacked(plain).numpy(), np.load(path)[f"x_{part}"][rows]
    slope = (clean[1] - clean[0]) / (raw[1] - raw[0])
    assert np.allclose(stacked(worse).numpy(), clean[0] + (degraded[rows] - raw[0]) * slope, atol=1e-4)
    assert worse.labels.tolist() == plain.labels.tolist()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"y_test": None}, "does not contain y_test"),
        ({"y_train": np.arange(39)}, r"x_train .* \(39, 4\), got \(40, 4\)"),
        ({"y_train": np.zeros(40)}, "y_train .* labels integers, got float64"),
        ({"x_train": np.full((40, 4), np.nan)}, "x_train .* contains NaN or infinity"),
        ({"x_test": np.zeros((40, 5))}, r"x_test .* \(40, 4\), got \(40, 5\)"),
        ({"x_test": np.zeros((0, 4)), "y_test": np.zeros(0, dtype=int)}, r"x_test .* got \(0, 4\)"),
        ({"views_train": np.zeros((2, 39, 4))}, r"views_train .* \(2, 40, 4\), got \(2, 39, 4\)"),
        ({"x_test_degraded": np.zeros((39, 4))}, r"x_test_degraded .* \(40, 4\), got \(39, 4\)"),
        ({"x_train": np.array([{}] * 40, dtype=object)}, "cannot read .*[Oo]bject arrays"),
        ({"y_train": np.repeat([0, 1], 20)}, "holds out 2 of 2 classes"),
    ],
)
def test_wrong_arrays(tmp_path, changed, message):
    with pytest.raises(ValueError, match=message):
        FeatureArrays(features(tmp_path / "f.npz", **changed))


def test_missing_and_unreadable_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing\.npz does not exist"):
        FeatureArrays(tmp_path / "nothing.npz")
    whole = features(tmp_path / "f.npz").read_bytes()
    for content in (b"text", whole[: len(whole) // 2]):
        (tmp_path / "broken.npz").write_bytes(content)
        with pytest.raises(ValueError, match=r"cannot read .*broken\.npz as an \.npz file"):
            FeatureArrays(tmp_path / "broken.npz")


def maps(path, **more):
    generator = np.random.default_rng(0)
    bytes_ = {name: generator.integers(-9, 9, (40, 3, 2, 2), dtype=np.int8) for name in ("x_train", "x_test")}
    labels = {f"y_{part}": np.repeat(np.arange(8), 5) for part in ("train", "test")}
    np.savez(path, **bytes_, **labels, step=np.array([1.0, 0.5, 0.25], np.float32), **more)
    return path


def test_maps_are_multiplied_by_the_step_and_drawn_from_all_versions(tmp_path):
    views, degraded = np.full((1, 40, 3, 2, 2), 50, np.int8), np.full((40, 3, 2, 2), 100, np.int8)
    degraded[:, 0, 0, 1] = np.arange(40)
    path = maps(tmp_path / "m.npz", views_train=views, x_train_degraded=degraded)
    splits, raw = MapArrays(path, degraded_share=0.25), np.load(path)
    assert splits.input_shape == (3, 2, 2)
    expected = raw["x_test"] * raw["step"][:, None, None]
    assert np.array_equal(stacked(splits.test).numpy(), expected)
    torch.manual_seed(0)
    drawn = [float(splits.train[0][0][0, 0, 0]) for _ in range(400)]
    assert 75 < drawn.count(100.0) < 125
    assert 120 < drawn.count(50.0) < 180
    torch.manual_seed(0)
    assert 100.0 not in [float(MapArrays(path).train[0][0][0, 0, 0]) for _ in range(30)]
    assert len(splits.train_degraded) == len(splits.train_plain)
    expected = degraded[splits.train_plain.indices.numpy()] * raw["step"][:, None, None]
    assert np.array_equal(stacked(splits.train_degraded).numpy(), expected), "in the order of train_plain"


@pytest.mark.parametrize(("share", "message"), [(0.5, "needs x_train_degraded"), (1.0, "less than 1, got 1.0")])
def test_degraded_maps_must_be_there(tmp_path, share, message):
    with pytest.raises(ValueError, match=message):
        MapArrays(maps(tmp_path / "m.npz"), degraded_share=share)
