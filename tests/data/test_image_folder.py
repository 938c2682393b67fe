"""A user's folder of class folders."""

import pytest
import torch

from pml_nivmf.data import ImageFolder

from .fakes import write_image

SMALL = {"crop_size": 16, "resize": 20}


def class_folders(root, names, images=2):
    for shade, name in enumerate(names):
        for i in range(images):
            write_image(root / name / f"{i}.{'png' if i else 'JPG'}", shade, mode="L" if i else "RGB")
    return root


def names_of(part):
    return {part.items.paths[i].split("/")[-2] for i in part.indices.tolist()}


def test_classes_are_split_three_ways(tmp_path):
    splits = ImageFolder(class_folders(tmp_path, [f"c{i:02d}" for i in range(16)]), **SMALL)
    train, validation, test = map(names_of, (splits.train, splits.validation, splits.test))
    assert (len(train), len(validation), len(test)) == (6, 2, 8)
    assert len(train | validation | test) == 16
    assert splits.num_classes == 6
    assert torch.bincount(splits.test.labels).tolist() == [2] * 8
    assert splits.train[0][0].shape == splits.input_shape == (3, 16, 16)
    assert [label for _, label in splits.test] == splits.test.labels.tolist()


def test_shares_and_seed_decide(tmp_path):
    class_folders(tmp_path, [f"c{i:02d}" for i in range(16)])
    splits = ImageFolder(tmp_path, test_share=0.25, validation_share=0.5, **SMALL)
    assert (splits.num_classes, len(splits.validation), len(splits.test)) == (6, 12, 8)
    tests = [names_of(ImageFolder(tmp_path, seed=seed, **SMALL).test) for seed in (0, 0, 1, 2)]
    assert tests[0] == tests[1]
    assert tests[0] != tests[2] or tests[0] != tests[3]


def test_given_train_and_test_folders_are_used(tmp_path):
    class_folders(tmp_path / "train", list("abcdefgh"))
    class_folders(tmp_path / "test", ["x", "y", "z"])
    splits = ImageFolder(tmp_path, **SMALL)
    assert names_of(splits.test) == {"x", "y", "z"}
    assert names_of(splits.train) | names_of(splits.validation) == set("abcdefgh")
    assert splits.num_classes == 6


def test_hidden_and_foreign_files_are_passed_over(tmp_path):
    class_folders(tmp_path, list("abcdef"))
    (tmp_path / ".git").mkdir()
    (tmp_path / "readme.txt").write_text("about")
    (tmp_path / "a" / "notes.txt").write_text("about a")
    (tmp_path / "a" / "._0.png").write_bytes(b"a Mac was here")
    splits = ImageFolder(tmp_path, test_share=0.3, **SMALL)
    assert len(splits.train) + len(splits.validation) + len(splits.test) == 12


def test_a_class_seen_in_training_is_no_test_class(tmp_path):
    class_folders(tmp_path / "train", list("abcd"))
    class_folders(tmp_path / "test", list("dx"))
    with pytest.raises(ValueError, match=r"1 classes are in both train/ and test/ .* first 'd'"):
        ImageFolder(tmp_path)


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no folder .*nowhere"):
        ImageFolder(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="holds 0 class folders; at least 6"):
        ImageFolder(tmp_path)
    class_folders(tmp_path, list("abcde"))
    with pytest.raises(ValueError, match="holds 5 class folders; at least 6"):
        ImageFolder(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"no images .* in .*empty: add some or remove it"):
        ImageFolder(tmp_path, test_share=0.3)


def test_bad_shares_are_named(tmp_path):
    class_folders(tmp_path, [f"c{i}" for i in range(8)])
    with pytest.raises(ValueError, match=r"test_share must be a share .* got 0"):
        ImageFolder(tmp_path, test_share=0)
    with pytest.raises(ValueError, match=r"test_share=0.7 of 8 classes leaves 2 to train on: 6 are held out"):
        ImageFolder(tmp_path, test_share=0.7)
    with pytest.raises(ValueError, match=r"validation_share=0.9 of 4 classes leaves 0"):
        ImageFolder(tmp_path, validation_share=0.9)


@pytest.mark.parametrize("content", [b"", b"no image", b"\x89PNG\r\n\x1a\n\0\0"])
def test_an_unreadable_image_is_named_with_what_to_do(tmp_path, content):
    splits = ImageFolder(class_folders(tmp_path, [f"c{i:02d}" for i in range(16)]), **SMALL)
    path = splits.train.items.paths[int(splits.train.indices[0])]
    with open(path, "wb") as file:
        file.write(content)
    with pytest.raises(OSError, match=rf"the image {path} cannot be read .*: put a whole one in its place and go on"):
        splits.train[0]
