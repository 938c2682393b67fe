"""A user's folder of class folders."""

import re

import pytest
import torch

from pml_nivmf.data import ImageFolder

from .fakes import write_image

SMALL = {"crop_size": 16, "resize": 20}
NAMES = [f"c{i:02d}" for i in range(16)]


def class_folders(root, names):
    for shade, name in enumerate(names):
        write_image(root / name / "0.JPG", shade, mode="RGB")
        write_image(root / name / "nested" / "1.png", shade, mode="L")
    return root


def names_in(part):
    return {re.search(r"/(c\d\d)/", part.items.paths[i])[1] for i in part.indices.tolist()}


def test_classes_are_split_in_three(tmp_path):
    splits = ImageFolder(class_folders(tmp_path, NAMES), **SMALL)
    train, validation, test = map(names_in, (splits.train, splits.validation, splits.test))
    assert (len(train), len(validation), len(test)) == (6, 2, 8)
    assert train | validation | test == set(NAMES)
    assert splits.num_classes == 6
    assert torch.bincount(splits.test.labels).tolist() == [2] * 8
    assert splits.train[0][0].shape == splits.input_shape == (3, 16, 16)


def test_folders_train_and_test(tmp_path):
    class_folders(tmp_path / "train", NAMES[:8])
    class_folders(tmp_path / "test", NAMES[8:11])
    splits = ImageFolder(tmp_path, **SMALL)
    assert names_in(splits.test) == set(NAMES[8:11])
    assert names_in(splits.train) | names_in(splits.validation) == set(NAMES[:8])
    class_folders(tmp_path / "test", NAMES[7:8])
    with pytest.raises(ValueError, match="must not share classes, but c07 is in both"):
        ImageFolder(tmp_path)


def test_hidden_and_other_files_are_ignored(tmp_path):
    class_folders(tmp_path, NAMES[:6])
    (tmp_path / ".git").mkdir()
    for name in ("readme.txt", "c00/notes.txt", "c00/._0.png"):
        (tmp_path / name).write_text("not an image")
    splits = ImageFolder(tmp_path, test_share=0.3, **SMALL)
    assert len(splits.train) + len(splits.validation) + len(splits.test) == 12


def test_missing_folders_and_classes(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere does not exist: root must be a folder"):
        ImageFolder(tmp_path / "nowhere")
    class_folders(tmp_path, NAMES[:5])
    with pytest.raises(ValueError, match="contains 5 class folders, but at least 6 are needed"):
        ImageFolder(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"the class folder .*empty contains no images"):
        ImageFolder(tmp_path, test_share=0.3)
    with pytest.raises(ValueError, match=r"test_share=0\.7 holds out 4 of 6 classes .* but 4 must remain"):
        ImageFolder(tmp_path, test_share=0.7)
