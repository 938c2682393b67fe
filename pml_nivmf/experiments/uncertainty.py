"""Measures of uncertainty of a finished run, and the files about its test items that the report shows."""

import contextlib
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from .. import metrics
from ..data import DegradedItems
from ..data.pictures import KINDS, STRENGTHS, evenly_spaced, make_pictures
from ..files import write_atomically
from ..metrics.certainty import NORM, PPK, SIMILARITY, certainty_metric, certainty_scores, similarity
from ..metrics.posteriors import concentration_statistics
from . import enrolment
from .build import Parts
from .evaluate import embed_items, score

ITEMS, PICTURES = "test_items.npz", "thumbnails.npz"
_NEIGHBOURS = 5
_MOST_DEGRADED = 128  # test images
_LARGE = 10_000_000  # parameters of a trunk for which degraded images take minutes on a CPU


class Retrieved(NamedTuple):
    """What n queries retrieved, nearest neighbours first, on the CPU: the arrays of test_items.npz."""

    labels: Tensor  # (n,)
    neighbours: Tensor  # indices into the references, (n, k)
    similarity: Tensor  # the cosine, or minus the distance if retrieval is "l2", (n, k)
    correct: Tensor  # whether the nearest neighbour has the query's label, (n,)
    counted: Tensor  # whether the query has anything to find; only these count in metrics, (n,)
    norm: Tensor  # ‖z‖ of the raw embedding, (n,)
    likelihood: Tensor  # log ∫ ζ_q ζ_n with the nearest neighbour, up to a constant, (n,)

    def scores(self) -> dict[str, Tensor]:
        return {NORM: self.norm, SIMILARITY: self.similarity[:, 0], PPK: self.likelihood}

    def metrics(self, *names: str) -> dict[str, float]:
        """Equal to the calculator's certainty metrics of these names."""
        scores = {name: values[self.counted] for name, values in self.scores().items()}
        return {name: certainty_metric(name, scores, self.correct[self.counted]) for name in names}

    def recall(self) -> float:
        return float(self.correct[self.counted].double().mean())


def retrieve(calculator: Any, references: Tensor, labels: Tensor, queries: Tensor, origin: Tensor) -> Retrieved:
    """Search raw queries (n, M) among raw references (items, M) with labels (items,) as the calculator does.

    Query i is a version of the reference origin[i], which is left out.
    """
    k = min(_NEIGHBOURS, len(labels) - 1)
    indices = calculator.knn_func(queries, k + 1, references)[1]
    left_out = indices == origin[:, None]
    left_out[~left_out.any(dim=1), -1] = True  # a degraded image may be far from its original
    indices = indices[~left_out].view(len(queries), k)
    nearest = indices[:, 0]
    scores = certainty_scores(queries, references[nearest], calculator.retrieval, calculator.embedding_scale)
    similarities = [similarity(queries, references[column], calculator.retrieval) for column in indices.T]
    correct, counted = labels[nearest] == labels[origin], torch.bincount(labels)[labels[origin]] > 1
    arrays = (labels[origin], indices, torch.stack(similarities, dim=1), correct, counted, scores[NORM], scores[PPK])
    return Retrieved(*(array.cpu() for array in arrays))


def test_and_measure(parts: Parts, folder: Path) -> dict[str, Any]:
    """Return test metrics, those of galleries too, and measures of uncertainty.

    Writes test_items.npz and, for images, thumbnails.npz.
    """
    scores, embeddings, labels = score(parts)
    scores |= enrolment.measure(parts, embeddings, labels)
    search = partial(retrieve, parts.calculators["test"], embeddings, labels)
    retrieved = search(embeddings, torch.arange(len(labels), device=labels.device))
    items = {name: value.numpy() for name, value in retrieved._asdict().items()}
    if parts.data.test.class_names:
        items["class_names"] = np.array(parts.data.test.class_names)
    _save(folder / ITEMS, items)
    with contextlib.suppress(ValueError):  # features, or what else the transforms of a user's data set return
        _save(folder / PICTURES, make_pictures(parts.data.test_images or parts.data.test, items))
    uncertainty = {
        "certainty": retrieved.metrics(*metrics.CERTAINTY_METRICS),
        "degradation": _degradation(parts, embeddings, search),
        "concentrations": concentration_statistics(parts.loss),
    }
    return {"test": scores, "uncertainty": uncertainty}


def _save(path: Path, arrays: dict[str, np.ndarray]) -> None:
    write_atomically(path, lambda file: np.savez_compressed(file, **arrays))  # type: ignore[arg-type]


def _degradation(parts: Parts, embeddings: Tensor, search: "partial[Retrieved]") -> dict[str, Any]:
    """Whether the model is less certain of degraded test items: those of the data, or else degraded images."""
    data: Any = parts.data
    indices, kinds = np.arange(len(data.test)), {data.degraded_as: {1.0: data.test_degraded}}
    if data.test_degraded is None:
        is_slow = parts.device.type == "cpu" and sum(p.numel() for p in parts.trunk.parameters()) >= _LARGE
        wanted = parts.config.evaluation.degradation
        if wanted is False or (wanted is None and is_slow):
            return {"left_out": "evaluation.degradation is false, or not set and the trunk is large for a CPU"}
        if len(data.input_shape) != 3 or data.input_shape[0] not in (1, 3):
            return {"left_out": "only images can be degraded, and the data have no degraded items (x_test_degraded)"}
        indices = evenly_spaced(len(data.test), _MOST_DEGRADED)
        images = [data.test[index] for index in indices.tolist()]  # loaded once, degraded often
        kinds = {kind: {strength: DegradedItems(images, kind, strength) for strength in STRENGTHS} for kind in KINDS}
    origin = torch.from_numpy(indices).to(embeddings.device)
    clean = search(embeddings[origin], origin)
    degraded: dict[str, dict[float, Retrieved]] = {kind: {} for kind in kinds}
    versions = [(kind, strength) for kind in kinds for strength in kinds[kind]]
    for kind, strength in tqdm(versions, desc="measuring uncertainty", leave=False):
        degraded[kind][strength] = search(embed_items(parts, kinds[kind][strength])[0], origin)
    results = {kind: _compare(clean, of_kind) for kind, of_kind in degraded.items()}
    overall: dict[str, Any] = {"recall_at_1": float(np.mean([result["recall_at_1"] for result in results.values()]))}
    for name in clean.scores():
        shares = [result[name]["share_less_certain"] for result in results.values()]
        overall[name] = {"share_less_certain": float(np.mean(shares))}
    return {"items": len(indices), "recall_at_1": clean.recall(), "overall": overall, "kinds": results}


def _compare(clean: Retrieved, degraded: dict[float, Retrieved]) -> dict[str, Any]:
    """Retrieval and each certainty of the same items at every strength, compared with clean ones."""
    recall = [worse.recall() for worse in degraded.values()]
    result: dict[str, Any] = {"strength": list(degraded), "recall_at_1": recall}
    for name, before in clean.scores().items():
        shares = [metrics.share_less_certain(before, worse.scores()[name]) for worse in degraded.values()]
        result[name] = {"share_less_certain": shares}
    return result
