"""Evaluation: which metrics are computed, and embeddings by PML's tester and metrics of a split."""

from typing import Any

import torch
from pytorch_metric_learning.testers import GlobalEmbeddingSpaceTester
from torch import Tensor

from ..checks import nearest
from ..metrics import ProbabilisticAccuracyCalculator, lower_is_better
from .config import ConfigError
from .distributed import on_first


def build_calculators(evaluation: dict[str, Any], device: torch.device) -> dict[str, ProbabilisticAccuracyCalculator]:
    """Return the calculators "validation" (after epochs) and "test" (once, with more metrics)."""
    recalls = [f"recall_at_{k}" for k in evaluation["recall_at"]]
    more = {"validation": recalls, "test": [*evaluation["test_metrics"], *recalls]}
    options = {"retrieval": evaluation["retrieval"], "device": device}
    try:
        return {
            split: ProbabilisticAccuracyCalculator([*evaluation["metrics"], *names], **options)
            for split, names in more.items()
        }
    except ValueError as error:
        raise ConfigError(f"evaluation: {error}") from error


def check_metrics(evaluation: dict[str, Any]) -> None:
    """Raise a ConfigError for unknown metrics and for a selection that is not computed or should be low."""
    calculators = build_calculators(evaluation, torch.device("cpu"))
    select, computed = evaluation["select"], calculators["validation"].get_curr_metrics()
    if select not in computed:
        raise ConfigError(f"evaluation.select: {select!r} is not computed{nearest(select, computed)}")
    if lower_is_better(select):
        raise ConfigError(f"evaluation.select: the highest score is selected, but lower is better for {select!r}")


def evaluate(parts: Any, split: str) -> dict[str, float]:
    """Return the metrics of one split after an epoch, as `{SPLIT_METRIC: value}`; rank 0 computes them for all."""
    metrics = on_first(lambda: score(parts, split, "validation")[0])
    return {f"{split}_{name}": value for name, value in metrics.items()}


def score(parts: Any, split: str = "test", metrics_of: str = "test") -> tuple[dict[str, float], Tensor, Tensor]:
    """Return metrics, raw embeddings (n, M) and labels (n,) of a split, on this rank."""
    calculator = parts.calculators[metrics_of]
    calculator.embedding_scale = parts.embedding_scale()
    embeddings, labels = embed_items(parts, getattr(parts.data, split))
    metrics = calculator.get_accuracy(embeddings, labels)
    return {name: float(value) for name, value in metrics.items()}, embeddings, labels


def embed_items(parts: Any, items: Any) -> tuple[Tensor, Tensor]:
    """Raw embeddings (n, M) in float32 and labels (n,) of a data set, on this rank, by PML's tester."""
    tester = GlobalEmbeddingSpaceTester(
        normalize_embeddings=False,  # norms are data; calculators retrieve by cosine themselves
        batch_size=parts.config.evaluation.batch_size,
        dataloader_num_workers=parts.config.general.num_workers,
        data_device=parts.device,
    )
    with parts.autocast():
        embeddings, labels = tester.get_all_embeddings(items, parts.trunk, parts.embedder)  # labels (n, 1)
    return embeddings.float(), labels[:, 0]
