"""Tiny folders and files in the layouts that the data sets expect."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image


def write_image(path: Path, shade: int, mode: str = "RGB", size: tuple[int, int] = (40, 30)) -> Path:
    """A plain image: `shade` is its red (or grey) value; the suffix decides the format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    color = {"RGB": (shade, 20, 40), "L": shade, "RGBA": (shade, 20, 40, 128), "P": shade}[mode]
    Image.new(mode, size, color).save(path)
    return path


def stacked(part) -> torch.Tensor:
    """All items of a part."""
    return torch.stack([item for item, _ in part])


def fake_cub(root: Path, train_classes: int = 8, test_classes: int = 3, images: int = 2) -> Path:
    """CUB's lists and images for classes 1 … and 101 …; the first image of every class is grey."""
    folder = root / "CUB_200_2011"
    classes = [*range(1, train_classes + 1), *range(101, 101 + test_classes)]
    names, labels = [], []
    for label in classes:
        for i in range(images):
            number, name = len(names) + 1, f"{label:03d}.Bird/{i}.jpg"
            write_image(folder / "images" / name, shade=label, mode="L" if i == 0 else "RGB")
            names.append(f"{number} {name}")
            labels.append(f"{number} {label}")
    (folder / "images.txt").write_text("\n".join(names) + "\n")
    (folder / "image_class_labels.txt").write_text("\n".join(labels) + "\n")
    return root


def fake_cars(root: Path) -> Path:
    """All 196 names, images of the classes 1 … 6 and 99 … 101; PML mixes both of the original halves."""
    classes = [*range(1, 7), 99, 100, 101]
    root.mkdir(parents=True, exist_ok=True)
    (root / "names.csv").write_text("".join(f"Make/Model {i}\n" for i in range(1, 197)))
    for half in ("train", "test"):
        lines = []
        for label in classes:
            write_image(root / "car_data" / "car_data" / half / f"Make-Model {label}" / f"{half}.jpg", shade=label)
            lines.append(f"{half}.jpg,1,2,3,4,{label}\n")
        (root / f"anno_{half}.csv").write_text("".join(lines))
    return root


def fake_sop(root: Path) -> Path:
    folder, number = root / "Stanford_Online_Products", 0
    for part, classes in (("train", range(1, 7)), ("test", range(11319, 11322))):
        (folder / "chair_final").mkdir(parents=True, exist_ok=True)
        lines = ["image_id class_id super_class_id path"]
        for label in classes:
            for i in range(2):
                number += 1
                name = f"chair_final/{label}_{i}.JPG"
                write_image(folder / name, shade=label % 256)
                lines.append(f"{number} {label} 1 {name}")
        (folder / f"Ebay_{part}.txt").write_text("\n".join(lines) + "\n")
    return root


def features(path: Path, classes: int = 8, each: int = 5, width: int = 4, views: int = 0, **changed: object) -> Path:
    """An .npz of random features, mean and spread growing with the axis; `changed` replaces arrays, None drops one."""
    generator = np.random.default_rng(0)
    spread = np.arange(1, width + 1)

    def draw(*shape: int) -> np.ndarray:
        return (generator.normal(size=(*shape, width)) * spread + 10 * spread).astype(np.float32)

    labels = np.repeat(np.arange(classes), each)
    arrays = {"x_train": draw(len(labels)), "y_train": labels, "x_test": draw(len(labels)), "y_test": labels + 7}
    if views:
        arrays["views_train"] = draw(views, len(labels))
    arrays.update(changed)
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path
