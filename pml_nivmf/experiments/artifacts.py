"""What a finished run leaves for its report: what each test item retrieved, pictures, and measures of uncertainty."""

import contextlib
from collections.abc import Iterator, Sized
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pytorch_metric_learning.testers import GlobalEmbeddingSpaceTester
from torch import Tensor
from torch.utils.data import DataLoader, Subset

from ..losses import JointProxyLoss, ProxyLoss
from ..metrics.set_metrics import COVERAGES, certainty_metrics, or_nan
from . import closed_set, degradation, pictures
from .build import Parts
from .checkpoint import write_atomically
from .retrieved import Gallery, Retrieved

ITEMS, PICTURES = "test_items.npz", "thumbnails.npz"
_MOST_KNOWN_IMAGES = 1024  # of the training classes
_Kept = dict[str, tuple[Tensor, Tensor]]


@contextlib.contextmanager
def kept_embeddings(tester: GlobalEmbeddingSpaceTester) -> Iterator[_Kept]:
    """What the tester embeds within the block and would forget: by split, embeddings (n, M) and labels (n, 1)."""
    kept: _Kept = {}
    before = tester.end_of_testing_hook
    tester.end_of_testing_hook = lambda tester: kept.update(tester.embeddings_and_labels)
    try:
        yield kept
    finally:
        tester.end_of_testing_hook = before


def embedding_scale(loss: torch.nn.Module) -> float:
    """What the loss multiplies embeddings by before they are concentrations; 1 where it does not."""
    owner = loss.probabilistic if isinstance(loss, JointProxyLoss) else loss
    return float(owner.embedding_scale) if isinstance(owner, ProxyLoss) else 1.0


@torch.no_grad()
def write(parts: Parts, embeddings: Tensor, labels: Tensor, folder: Path) -> dict[str, Any]:
    """Leave test_items.npz and, for images, thumbnails.npz; returns the run's measures of uncertainty.

    embeddings: of all test items, raw, by the weights that were tested, (items, M). labels: (items,).
    """
    calculator = parts.testers["test"].accuracy_calculator
    gallery = Gallery(embeddings.float(), labels.long(), calculator, embedding_scale(parts.loss))
    found = gallery.retrieve(gallery.embeddings, torch.arange(len(labels), device=labels.device))
    _save(folder / ITEMS, {name: value.numpy() for name, value in vars(found).items()})
    return {
        "certainty": _certainty(found),
        "degradation": _degradation(parts, gallery),
        "calibration": _calibration(parts),
        "concentrations": closed_set.concentrations(parts.loss),
        "pictures": _keep_pictures(parts, found, folder),
    }


def embed(parts: Parts, inputs: Tensor) -> Tensor:
    parts.trunk.eval()
    parts.embedder.eval()
    size = parts.testers["test"].batch_size
    batches = (batch.to(parts.device) for batch in inputs.split(size))
    return torch.cat([parts.embedder(parts.trunk(batch)).float() for batch in batches])


def embed_items(parts: Parts, items: Any) -> tuple[Tensor, Tensor]:
    """Embeddings (n, M) and labels (n,) of a data set."""
    tester = parts.testers["test"]
    loader = DataLoader(items, batch_size=tester.batch_size, num_workers=tester.dataloader_num_workers)
    found = [(embed(parts, inputs), labels) for inputs, labels in loader]
    return torch.cat([z for z, _ in found]), torch.cat([labels for _, labels in found])


def _certainty(found: Retrieved) -> dict[str, float]:
    """All of CERTAINTY_METRICS; NaN where undefined."""
    kept, scores = found.counted, found.scores()
    if not bool(kept.any()):
        return {name: float("nan") for name in certainty_metrics(COVERAGES)}
    return {
        name: or_nan(metric.value, scores[metric.score][kept], found.correct[kept])
        for name, metric in certainty_metrics(COVERAGES).items()
    }


def _degradation(parts: Parts, gallery: Gallery) -> dict[str, Any]:
    data = parts.data
    if data.test_degraded is not None:
        return degradation.of_given(embed_items(parts, data.test_degraded)[0], gallery)
    if len(data.input_shape) != 3:
        return {"left_out": "features cannot be degraded, and the data bring no degraded ones (x_test_degraded)"}
    return degradation.of_images(data.test, gallery, lambda images: embed(parts, images))


def _calibration(parts: Parts) -> dict[str, Any]:
    """On the closed set, where there is one, else on images that were trained on."""
    kept_out = parts.data.closed_set
    items: Any = parts.data.train_plain if kept_out is None else kept_out
    images = closed_set.TRAINED_ON if kept_out is None else closed_set.KEPT_OUT
    return closed_set.calibration(parts.loss, *embed_items(parts, Subset(items, _some(items))), images)


def _keep_pictures(parts: Parts, found: Retrieved, folder: Path) -> dict[str, Any]:
    if len(parts.data.input_shape) != 3:
        return {"left_out": "the data are features"}
    try:
        kept = pictures.keep(parts.data.test, found)
    except ValueError as error:  # a data set of the user's own, whose transforms give no pictures
        return {"left_out": str(error)}
    _save(folder / PICTURES, kept)
    return {"images": len(kept["index"])}


def _some(items: Sized) -> list[int]:
    return degradation.evenly_spread(len(items), _MOST_KNOWN_IMAGES).tolist()


def _save(path: Path, arrays: dict[str, np.ndarray]) -> None:
    write_atomically(path, lambda file: np.savez_compressed(file, **arrays))  # type: ignore[arg-type]
