"""Time of a gallery's answers next to faiss's plain search for nearest neighbours, in one run."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..inference import ClassGallery

_QUERIES, _ADDED = 256, 1000


def run(size: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """One row per step with its seconds; the last but one has the median ratio of both kinds of answers.

    size: images, classes, dimensions.
    """
    import faiss

    images, classes, dimensions = size
    faiss.omp_set_num_threads(torch.get_num_threads())
    torch.manual_seed(0)
    centres, labels = F.normalize(torch.randn(classes, dimensions)), torch.arange(images) % classes
    embeddings, queries, more = (_near(centres[labels[:count]]) for count in (images, _QUERIES, _ADDED))
    gallery, plain = ClassGallery(), faiss.IndexFlatIP(dimensions)
    plain.add(F.normalize(embeddings).numpy())
    once = {
        f"enrol {images:,} images of {classes:,} classes": lambda: gallery.add(embeddings, labels),
        "fit": gallery.fit,
        "first query, which builds the index": lambda: gallery.identify(queries[:1]),
    }
    rows: list[dict[str, Any]] = [{"step": name, "seconds": _seconds(step)} for name, step in once.items()]
    units = F.normalize(queries).numpy()
    times = [
        (_seconds(lambda: plain.search(units, 1)), _seconds(lambda: gallery.identify(queries))) for _ in range(rounds)
    ]
    for name, values in zip(("nearest neighbours by faiss", "identify"), zip(*times, strict=True), strict=True):
        rows.append({"step": f"{name}, {len(queries)} queries", "seconds": statistics.median(values)})
    rows[-1]["ratio"] = statistics.median(ours / theirs for theirs, ours in times)
    gallery.add(more, labels[:_ADDED])
    rows.append({"step": f"query after {len(more):,} more, without fit", "seconds": _seconds(once[rows[2]["step"]])})
    return rows


def _near(centres: Tensor) -> Tensor:
    return centres + 1.5 / centres.shape[1] ** 0.5 * torch.randn_like(centres)


def _seconds(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def show(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        ratio = f"   {row['ratio']:.2f} times the plain search" if "ratio" in row else ""
        print(f"{row['step']:<52}{row['seconds']:>10.3f} s{ratio}")
