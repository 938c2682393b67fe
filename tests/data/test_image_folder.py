"""A user's folder of class folders."""

import re

import pytest
import torch

from pml_nivmf.data import ImageFolder
from pml_nivmf.data.image_folder import check_images

from .fakes import write_image

SMALL = {"crop_size": 16, "resize": 20}
FEW = {"test_share": 0.3, **SMALL}
NAMES = [f"c{i:02d}" for i in range(16)]


def class_folders(root, names):
    for shade, name in enumerate(names):
        write_image(root / name / "0.JPG", shade, mode="RGB")
        write_image(root / name / "nested" / "1.png", shade, mode="L")
    return root


def names_in(part):
    return {re.search(r"/(c\d\d)/", part.items.paths[i])[1] for i in part.indices.tolist()}


def test_classes_are_split_in_three(tmp_path):
    class_folders(tmp_path, NAMES)
    (tmp_path / ".git").mkdir()
    for name in ("readme.txt", "c00/notes.txt", "c00/._0.png"):  # ignored
        (tmp_path / name).write_text("not an image")
    splits = ImageFolder(tmp_path, **SMALL)
    for part in (splits.train, splits.validation, splits.test):
        folders = [part.items.paths[index] for index in part.indices.tolist()]
        assert all(f"/{part.class_names[label]}/" in path for path, label in zip(folders, part.labels, strict=True))
        assert torch.bincount(part.labels).unique().tolist() == [2]
    train, validation, test = map(names_in, (splits.train, splits.validation, splits.test))
    assert (len(train), len(validation), len(test)) == (6, 2, 8)
    assert train | validation | test == set(NAMES)
    assert splits.num_classes == 6
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


def test_missing_folders_and_classes(tmp_path):
    for root in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(FileNotFoundError, match=f"{root} must be a folder that contains one folder of images"):
            ImageFolder(root)
    class_folders(tmp_path, NAMES[:5])
    with pytest.raises(ValueError, match=r"test_share=0\.5 holds out 2 of 5 classes, but 4 must remain: at least 6"):
        ImageFolder(tmp_path)
    class_folders(tmp_path / "both" / "train", NAMES[:5])
    class_folders(tmp_path / "both" / "test", NAMES[5:6])
    with pytest.raises(ValueError, match="both must contain images of at least two training and two test classes"):
        ImageFolder(tmp_path / "both")


def test_unusable_images_and_classes_are_listed_or_left_out(tmp_path):
    class_folders(tmp_path, [*NAMES[:6], "naïve 猫"])
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    content = (tmp_path / "c01" / "0.JPG").read_bytes()
    bad = {"c01/0.JPG": content[: len(content) // 2], "broken/ä.png": b"no image"}
    for name, damaged in bad.items():
        (tmp_path / name).write_bytes(damaged)
    with pytest.raises(ValueError, match=r"skip_bad=true") as error:
        ImageFolder(tmp_path)
    lines = str(error.value).splitlines()
    assert lines[0] == f"3 problems in {tmp_path}:"
    assert lines[1] == "  broken/ä.png: cannot identify image file"
    assert lines[2].lower().startswith("  c01/0.jpg: truncated")
    assert lines[3] == "  empty: a class folder without images"
    found = ImageFolder(tmp_path, skip_bad=True, **FEW)
    listed = ImageFolder(tmp_path, skip_bad=check_images(tmp_path, skip_bad=True), **FEW)
    for splits in (found, listed):
        parts = (splits.train, splits.validation, splits.test)
        assert sum(map(len, parts)) == 13
        assert sorted(name for part in parts for name in part.class_names) == [*NAMES[:6], "naïve 猫"]
