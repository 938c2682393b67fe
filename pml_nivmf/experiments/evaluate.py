"""Evaluation with PML's GlobalEmbeddingSpaceTester: which metrics, on which split, on one rank or several."""

from typing import Any

import torch
import torch.distributed as dist
from pytorch_metric_learning.testers import GlobalEmbeddingSpaceTester
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset

from ..checks import nearest
from ..losses.collectives import gather_uneven, rank, world
from ..metrics import ProbabilisticAccuracyCalculator, lower_is_better
from .config import ConfigError
from .distributed import on_first


class Tester(GlobalEmbeddingSpaceTester):
    """PML's tester with mixed precision, which distributes the batches of images over the ranks.

    The batches are those of one process, so embeddings are equal to the last bit.
    """

    def __init__(self, autocast: Any, **arguments: Any):
        super().__init__(**arguments)
        self.autocast = autocast

    def get_embeddings_for_eval(self, *args: Any) -> Tensor:
        with self.autocast():
            embeddings: Tensor = super().get_embeddings_for_eval(*args)
        return embeddings.float()

    def get_all_embeddings(
        self, dataset: Any, trunk_model: nn.Module, embedder_model: nn.Module, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if world() == 1:
            return super().get_all_embeddings(dataset, trunk_model, embedder_model, *args, **kwargs)
        for buffer in (*trunk_model.buffers(), *embedder_model.buffers()):
            dist.broadcast(buffer, 0)  # running statistics of batch norms are those of each rank's images
        batch = torch.arange(len(dataset)) // max(1, min(self.batch_size, len(dataset) // world()))
        shares = [(batch % world() == number).nonzero().flatten() for number in range(world())]
        share = Subset(dataset, shares[rank()].tolist())
        values = super().get_all_embeddings(share, trunk_model, embedder_model, *args, **kwargs)
        lengths, order = [len(share) for share in shares], torch.cat(shares).argsort()
        embeddings, labels = (torch.cat(gather_uneven(value, lengths))[order.to(value.device)] for value in values)
        return embeddings, labels


def build_tester(settings: dict[str, Any], device: torch.device, autocast: Any) -> Tester:
    return Tester(
        autocast,
        normalize_embeddings=False,  # norms are data; calculators retrieve by cosine themselves
        batch_size=settings["evaluation"]["batch_size"],
        dataloader_num_workers=settings["general"]["num_workers"],
        data_device=device,
    )


def build_calculators(evaluation: dict[str, Any], device: torch.device) -> dict[str, ProbabilisticAccuracyCalculator]:
    """Return the calculators "validation" (after epochs) and "test" (once, with more metrics)."""
    check_metrics(evaluation)
    more = list(dict.fromkeys([*evaluation["metrics"], *evaluation["test_metrics"]]))
    splits = {"validation": evaluation["metrics"], "test": more}
    return {split: _build_calculator(evaluation, metrics, device) for split, metrics in splits.items()}


def check_metrics(evaluation: dict[str, Any]) -> None:
    """Raise a ConfigError for unknown metrics and for a selection that is not computed or should be low."""
    for name in (*evaluation["metrics"], *evaluation["test_metrics"]):
        try:
            ProbabilisticAccuracyCalculator(include=(name,))  # some names contain a number, such as recall_at_5
        except ValueError:
            known = ProbabilisticAccuracyCalculator().original_function_dict
            key = f"evaluation.{'metrics' if name in evaluation['metrics'] else 'test_metrics'}"
            raise ConfigError(f"{key}: unknown metric {name!r}{nearest(name, known)}") from None
    select = evaluation["select"]
    computed = _build_calculator(evaluation, evaluation["metrics"], torch.device("cpu")).get_curr_metrics()
    if select not in computed:
        raise ConfigError(f"evaluation.select: {select!r} is not computed{nearest(select, computed)}")
    if lower_is_better(select):
        raise ConfigError(f"evaluation.select: the highest score is selected, but lower is better for {select!r}")


def _build_calculator(
    evaluation: dict[str, Any], metrics: list[str], device: torch.device
) -> ProbabilisticAccuracyCalculator:
    try:
        return ProbabilisticAccuracyCalculator(
            include=(*metrics, *(f"recall_at_{k}" for k in evaluation["recall_at"])),
            recall_at=tuple(evaluation["recall_at"]),
            retrieval=evaluation["retrieval"],
            device=device,
        )
    except ValueError as error:
        raise ConfigError(f"evaluation: {error}") from error


def evaluate(parts: Any, split: str) -> dict[str, float]:
    """Return the metrics of one split after an epoch, as `{SPLIT_METRIC: value}`, on all ranks."""
    metrics, _, _ = _score(parts, split, parts.calculators["validation"])
    return {f"{split}_{name}": value for name, value in metrics.items()}


def test(parts: Any) -> tuple[dict[str, float], Tensor, Tensor]:
    """Return metrics, raw embeddings (n, M) and labels (n,) of the test set, on all ranks."""
    return _score(parts, "test", parts.calculators["test"])


def _score(parts: Any, split: str, calculator: Any) -> tuple[dict[str, float], Tensor, Tensor]:
    calculator.embedding_scale = parts.embedding_scale()
    items = getattr(parts.data, split)
    embeddings, labels = parts.tester.get_all_embeddings(items, parts.trunk, parts.embedder)  # labels (n, 1)
    metrics = on_first(lambda: calculator.get_accuracy(embeddings, labels[:, 0]))
    return {name: float(value) for name, value in metrics.items()}, embeddings, labels[:, 0]


@torch.no_grad()
def embed_items(parts: Any, items: Any) -> tuple[Tensor, Tensor]:
    """Embeddings (n, M) and labels (n,) of a data set, on this rank alone."""
    parts.trunk.eval()
    parts.embedder.eval()
    loader = DataLoader(items, batch_size=parts.tester.batch_size)
    embeddings, labels = zip(*((parts.embed(inputs), labels) for inputs, labels in loader), strict=True)
    return torch.cat(embeddings), torch.cat(labels)
