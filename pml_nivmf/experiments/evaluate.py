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
from .distributed import is_first, on_first


class Tester(GlobalEmbeddingSpaceTester):
    """PML's tester with mixed precision, which distributes the batches of images over the ranks.

    The batches are those of one process, so embeddings are equal to the last bit. Only rank 0 computes metrics.
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

    def do_knn_and_accuracies(self, accuracies: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if is_first():
            super().do_knn_and_accuracies(accuracies, *args, **kwargs)


def build_testers(settings: dict[str, Any], device: torch.device, autocast: Any) -> dict[str, Tester]:
    """Return the testers "validation" (after epochs) and "test" (once, with more metrics)."""
    evaluation = settings["evaluation"]
    check_metrics(evaluation)
    more = list(dict.fromkeys([*evaluation["metrics"], *evaluation["test_metrics"]]))
    return {
        split: Tester(
            autocast,
            normalize_embeddings=False,  # norms are data; the calculator retrieves by cosine itself
            batch_size=evaluation["batch_size"],
            dataloader_num_workers=settings["general"]["num_workers"],
            data_device=device,
            accuracy_calculator=_build_calculator(evaluation, names, device),
            end_of_testing_hook=lambda tester: None,
        )
        for split, names in {"validation": evaluation["metrics"], "test": more}.items()
    }


def check_metrics(evaluation: dict[str, Any]) -> None:
    """Raise a ConfigError for unknown metrics and for a selection that is not computed or should be low."""
    for name in (*evaluation["metrics"], *evaluation["test_metrics"]):
        try:
            ProbabilisticAccuracyCalculator(include=(name,))  # some names contain a number, such as recall_at_5
        except ValueError:
            known = ProbabilisticAccuracyCalculator().original_function_dict
            key = f"evaluation.{'metrics' if name in evaluation['metrics'] else 'test_metrics'}"
            raise ConfigError(f"{key}: unknown metric {name!r}{nearest(name, known)}", key=key) from None
    select, key = evaluation["select"], "evaluation.select"
    computed = _build_calculator(evaluation, evaluation["metrics"], torch.device("cpu")).get_curr_metrics()
    if select not in computed:
        raise ConfigError(f"{key}: {select!r} is not computed{nearest(select, computed)}", key=key)
    if lower_is_better(select):
        raise ConfigError(f"{key}: the highest score is selected, but lower is better for {select!r}", key=key)


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
        raise ConfigError(f"evaluation: {error}", key="evaluation") from error


def evaluate(parts: Any, split: str, epoch: int, tester: str = "validation") -> dict[str, float]:
    """Return the metrics of one split, by the tester of this name, as `{SPLIT_METRIC: value}`, on all ranks."""
    chosen = parts.testers[tester]
    chosen.accuracy_calculator.embedding_scale = parts.embedding_scale()
    accuracies = chosen.test({split: getattr(parts.data, split)}, epoch, parts.trunk, parts.embedder)[split]
    accuracies, suffix = on_first(lambda: dict(accuracies)), "_level0"  # other ranks have none
    return {f"{split}_{k.removesuffix(suffix)}": float(v) for k, v in accuracies.items() if k.endswith(suffix)}


@torch.no_grad()
def embed_items(parts: Any, items: Any) -> tuple[Tensor, Tensor]:
    """Embeddings (n, M) and labels (n,) of a data set, on this rank alone."""
    parts.trunk.eval()
    parts.embedder.eval()
    loader = DataLoader(items, batch_size=parts.testers["test"].batch_size)
    embeddings, labels = zip(*((parts.embed(inputs), labels) for inputs, labels in loader), strict=True)
    return torch.cat(embeddings), torch.cat(labels)


def test(parts: Any, epoch: int) -> tuple[dict[str, float], Tensor, Tensor]:
    """Return metrics, raw embeddings (n, M) and labels (n,) of the test set."""
    tester, split = parts.testers["test"], {}
    tester.end_of_testing_hook = lambda tester: split.update(tester.embeddings_and_labels)
    metrics = {name.removeprefix("test_"): value for name, value in evaluate(parts, "test", epoch, "test").items()}
    embeddings, labels = split["test"]
    return metrics, embeddings, labels[:, 0]
