"""The embedded data set: which characters, how they look, and the cache."""

import os

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from pml_nivmf.data import Glyphs, glyphs
from pml_nivmf.data.cache import cached_arrays, user_cache_dir
from pml_nivmf.data.glyph_fonts import FONTS, characters, font_files
from pml_nivmf.data.glyph_rendering import render


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("glyphs")


@pytest.fixture(scope="module")
def splits(cache):
    return Glyphs(cache_dir=cache)


@pytest.fixture(scope="module")
def classes():
    return characters()


@pytest.fixture
def few(monkeypatch, classes):
    """Eight training and four test characters: rendering takes milliseconds."""
    train, test = ({c: part[c] for c in list(part)[:n]} for part, n in zip(classes, (8, 4), strict=True))
    monkeypatch.setattr(glyphs, "characters", lambda: (train, test))


def images(part):
    return torch.stack([image for image, _ in part])


def test_sixteen_fonts():
    assert len(set(FONTS)) == 16
    assert list(font_files()) == list(FONTS)


def test_characters(classes):
    train, test = classes
    assert len(train) == 369
    assert len(test) == 187
    assert not set(train) & set(test)
    assert {"0", "A", "z", "é", "ʒ"} <= set(train)
    assert {"Ω", "β", "Ж", "я"} <= set(test)
    assert set(map(len, train.values())) == {16}
    assert min(map(len, test.values())) == 12


def test_look_alikes_are_left_out(classes):
    train, test = classes
    # Greek and Cyrillic capitals in the shape of Latin ones; Cyrillic ones in the shape of Greek ones; a Latin pair
    assert not set("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧοАВЕКМНОРСТХаеорсухѕіј") & set(test)
    assert "Π" in test
    assert "П" not in test
    assert "Ð" in train
    assert "Đ" not in train


def test_parts(splits):
    assert splits.num_classes == 277
    assert splits.input_shape == (1, 32, 32)
    for part, count in ((splits.train, 277), (splits.train_plain, 277), (splits.validation, 92), (splits.test, 187)):
        assert torch.equal(torch.bincount(part.labels), torch.full((count,), 16))
    assert not set(splits.train.indices.tolist()) & set(splits.validation.indices.tolist())


def test_images_are_bright_ink_within_the_frame(splits):
    drawn = images(splits.test)
    assert drawn.dtype == torch.float32
    assert drawn.shape == (187 * 16, 1, 32, 32)
    assert drawn.amin() == 0
    assert drawn.amax() == 1
    assert (drawn.flatten(1).amax(1) > 0.5).all()  # none blank
    assert 0.02 < drawn.mean() < 0.3
    rim = torch.cat([drawn[..., 0, :], drawn[..., -1, :], drawn[..., 0], drawn[..., -1]], dim=-1)
    assert (rim.flatten(1).amax(1) > 0.5).float().mean() < 0.005  # hardly any cut off


def test_no_two_images_are_equal(splits):
    drawn = torch.cat([images(splits.train_plain), images(splits.validation), images(splits.test)]).flatten(1)
    assert len(torch.unique(drawn, dim=0)) == len(drawn)


def test_images_of_a_class_resemble_each_other(splits):
    """Pixels alone retrieve far better than chance (1 in 187) and far from perfectly."""
    drawn = images(splits.test).flatten(1)
    drawn = torch.nn.functional.normalize(drawn - drawn.mean(1, keepdim=True))
    nearest = (drawn @ drawn.T).fill_diagonal_(-1).argmax(1)
    recall = (splits.test.labels[nearest] == splits.test.labels).float().mean()
    assert 0.15 < recall < 0.7


def test_only_training_is_augmented_and_by_torch_s_generator(splits):
    torch.manual_seed(5)
    first = [splits.train[i][0] for i in range(20)]
    second = [splits.train[i][0] for i in range(20)]
    torch.manual_seed(5)
    np.random.seed(1)
    assert all(torch.equal(a, splits.train[i][0]) for i, a in enumerate(first))
    assert sum(torch.equal(a, b) for a, b in zip(first, second, strict=True)) < 10
    assert torch.equal(splits.train_plain[3][0], splits.train_plain[3][0])


def test_the_same_seed_gives_the_same_images(few, tmp_path):
    first, again, other = (Glyphs(cache_dir=tmp_path / str(i), seed=s, instances=4) for i, s in enumerate((0, 0, 1)))
    assert torch.equal(images(first.test), images(again.test))
    assert torch.equal(images(first.train_plain), images(again.train_plain))
    assert not torch.equal(images(first.test), images(other.test))


def test_jitter_differs_between_instances(classes):
    one_font = {"A": ("DejaVuSans",)}
    still = render(one_font, font_files(), size=32, instances=6, jitter=0.0, seed=0)
    moved = render(one_font, font_files(), size=32, instances=6, jitter=1.0, seed=0)
    assert all(np.array_equal(still[0, 0], image) for image in still[0])
    assert len({image.tobytes() for image in moved[0]}) == 6
    distance = np.abs(moved[0].astype(int) - still[0].astype(int)).mean(axis=(1, 2))
    assert distance.max() < 60  # small: the character stays what it is
    with_more = render({"0": FONTS, "A": ("DejaVuSans",)}, font_files(), size=32, instances=6, jitter=1.0, seed=0)
    assert np.array_equal(with_more[1], moved[0])  # another class changes nothing


def test_without_jitter_the_glyph_is_centred():
    drawn = render({"O": ("DejaVuSans",)}, font_files(), size=32, instances=2, jitter=0.0, seed=0)[0, 0] / 255.0
    rows, columns = np.indices(drawn.shape)
    assert (drawn * rows).sum() / drawn.sum() == pytest.approx(15.5, abs=0.5)
    assert (drawn * columns).sum() / drawn.sum() == pytest.approx(15.5, abs=0.5)


def test_the_cache_is_used_and_left_tidy(few, tmp_path, monkeypatch):
    first = Glyphs(cache_dir=tmp_path, instances=2)
    assert len(os.listdir(tmp_path)) == 1
    monkeypatch.setattr(glyphs, "characters", lambda: pytest.fail("rendered again"))
    assert torch.equal(images(first.test), images(Glyphs(cache_dir=tmp_path, instances=2, shift=0).test))


@pytest.mark.parametrize("change", [{"size": 24}, {"instances": 3}, {"jitter": 0.5}, {"seed": 1}])
def test_the_key_covers_what_changes_the_images(few, tmp_path, change):
    arguments = {"cache_dir": tmp_path, "size": 20, "instances": 2}
    Glyphs(**arguments)
    Glyphs(**(arguments | change))
    assert len(os.listdir(tmp_path)) == 2


@pytest.mark.parametrize("damage", ["empty", "truncated", "flipped", "text"])
def test_a_damaged_cache_is_rendered_again(few, tmp_path, damage):
    first = images(Glyphs(cache_dir=tmp_path, instances=4).test)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes(255 - byte for byte in whole[middle : middle + 40]) + whole[middle + 40 :]
    file.write_bytes({"empty": b"", "truncated": whole[:middle], "flipped": flipped, "text": b"no zip"}[damage])
    assert torch.equal(images(Glyphs(cache_dir=tmp_path, instances=4).test), first)
    with np.load(file) as archive:
        assert archive["test"].shape == (4, 4, 32, 32)


def test_a_write_that_dies_leaves_no_file(tmp_path, monkeypatch):
    def die(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", die)
    with pytest.raises(KeyboardInterrupt):
        cached_arrays(tmp_path / "a.npz", ("x",), lambda: {"x": np.ones(3)})
    assert os.listdir(tmp_path) == []


def test_a_folder_that_cannot_be_written_costs_a_warning(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(UserWarning, match="nothing is cached"):
        arrays = cached_arrays(tmp_path / "file" / "a.npz", ("x",), lambda: {"x": np.ones(3)})
    assert arrays["x"].sum() == 3


def test_default_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache_dir() == tmp_path / "pml_nivmf"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert user_cache_dir() == tmp_path / "home" / ".cache" / "pml_nivmf"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 4}, "size must be an integer of at least 8, got 4"),
        ({"instances": 1}, "instances must be an integer of at least 2, got 1"),
        ({"jitter": -1.0}, "jitter must be a number of at least 0, got -1.0"),
        ({"jitter": float("nan")}, "jitter .* got nan"),
        ({"seed": -3}, "seed must be an integer of at least 0, got -3"),
        ({"shift": 1.5}, "shift must be an integer of at least 0, got 1.5"),
        ({"validation_share": 0.0}, "validation_share must be a share"),
    ],
)
def test_bad_arguments(few, tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        Glyphs(cache_dir=tmp_path, **arguments)


def test_workers_load_the_same_items(splits):
    loaded, labels = next(iter(DataLoader(splits.test, batch_size=32, num_workers=1)))
    assert torch.equal(loaded, images([splits.test[i] for i in range(32)]))
    assert labels.tolist() == splits.test.labels[:32].tolist()
