"""Galleries in runs: how well classes unseen in training are recognised from a few images, and enrolment."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from ..checks import check_range
from ..data.image_folder import class_folders, images_in
from ..inference import Answer, ClassGallery, WithinClassShape
from ..metrics import draw_gallery, posterior_metrics
from .build import Parts
from .evaluate import embed_items
from .load import LoadedRun, load_run

_SEEDS = 3  # galleries per number of shots
_BATCH = 64


def measure(parts: Parts, embeddings: Tensor, labels: Tensor) -> dict[str, float]:
    """Metrics `gallery_K_shot_NAME` of test items, over the queries to three random galleries with K images per class.

    K: see `evaluation.gallery_shots`. NAME: see `posterior_metrics`; or nearest_neighbour, whose accuracy it is.
    """
    shots = parts.config.evaluation.gallery_shots
    if not shots:
        return {}
    prior, results = _prior(parts), dict[str, float]()
    for count in tqdm(shots, desc="galleries", leave=False):
        answers = []
        for seed in range(_SEEDS):
            rows, queries = draw_gallery(labels, count, seed)
            gallery = ClassGallery(prior)
            gallery.add(embeddings[rows], labels[rows])  # by class, in ascending order
            columns = torch.searchsorted(torch.tensor(gallery.labels), labels[queries].cpu())
            nearest = parts.calculators["test"].knn_func(embeddings[queries], 1, embeddings[rows])[1][:, 0]
            right = (labels[rows.to(nearest.device)[nearest]] == labels[queries]).double()
            answers.append((gallery.fit()(embeddings[queries]), columns, right))
        posteriors, columns, right = (torch.cat(tensors) for tensors in zip(*answers, strict=True))
        metrics = posterior_metrics(posteriors, columns) | {"nearest_neighbour": float(right.mean())}
        results |= {f"gallery_{count}_shot_{name}": value for name, value in metrics.items()}
    return results


def _prior(parts: Parts) -> WithinClassShape:
    """From validation classes, which are unseen in training as those of a gallery are, if there are any."""
    return WithinClassShape.from_embeddings(*embed_items(parts, parts.data.validation or parts.data.train_plain))


def enrol(folder: Path, source: Path, target: Path) -> ClassGallery:
    """Enrol images in source/<class>/…, or the arrays `embeddings` and `labels` of an .npz file; save the gallery."""
    run = load_run(folder)
    gallery = ClassGallery(_prior(run.parts))
    gallery.info = {"run": str(folder.resolve())}
    if source.suffix == ".npz":
        vectors, labels = _arrays(source, "embeddings", "labels")
        gallery.add(vectors, labels)
    else:
        embeddings, paths = _embed(run, [path for paths in class_folders(source).values() for path in paths])
        classes = [path.relative_to(source).parts[0] for path in paths]
        gallery.add(embeddings, classes, [str(path.resolve()) for path in paths])
    gallery.fit().save(target)
    return gallery


def identify(path: Path, sources: Sequence[Path], precision: float, run: str | None = None) -> dict[str, Answer]:
    """The answers of a gallery to images, all images in folders, and the `embeddings` of .npz files, by their names.

    run: the folder of the gallery's run, if it has moved.
    """
    check_range("precision", precision, at_most=1)
    gallery = ClassGallery.load(path)
    files = [path for source in sources for path in (images_in(source) if source.is_dir() else [source])]
    archives = [path for path in files if path.suffix == ".npz"]
    embeddings: list[Any] = [_arrays(path, "embeddings")[0] for path in archives]
    names = [f"{path}[{row}]" for path, rows in zip(archives, embeddings, strict=True) for row in range(len(rows))]
    if images := [path for path in files if path not in archives]:
        if not (place := Path(run or gallery.info["run"])).exists():
            raise FileNotFoundError(f"the gallery's run {place} does not exist: name its folder with --run")
        raw, readable = _embed(load_run(place), images)
        embeddings.append(raw)
        names += map(str, readable)
    return dict(zip(names, gallery.identify(np.concatenate(embeddings), precision), strict=True))


def _arrays(path: Path, *names: str) -> list[np.ndarray]:
    with np.load(path, allow_pickle=False) as archive:
        if missing := [name for name in names if name not in archive]:
            raise ValueError(f"{path} must have the arrays {' and '.join(names)}, but lacks {missing[0]}")
        return [archive[name] for name in names]


@torch.no_grad()
def _embed(run: LoadedRun, paths: Sequence[Path]) -> tuple[Tensor, list[Path]]:
    """Raw embeddings of the images that can be read, and their paths; others are named and skipped."""
    readable, parts = [], []
    for start in tqdm(range(0, len(paths), _BATCH), desc="embedding", unit="batch", leave=False):
        inputs = []
        for path in paths[start : start + _BATCH]:
            try:
                inputs.append(run.read_image(path))
                readable.append(path)
            except OSError as error:
                tqdm.write(f"skipped: {error}", file=sys.stderr)
        parts += [run.parts.embed(torch.stack(inputs)).cpu()] if inputs else []
    if not parts:
        raise ValueError(f"none of {len(paths)} images can be read")
    return torch.cat(parts), readable
