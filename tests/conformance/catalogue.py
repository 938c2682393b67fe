"""All classes of PML that take a distance or a loss, and how to build each; all of ours.

`outcome` puts a distance of ours into one of PML's classes and says what happened. test_distances.py holds that this is
what its lists say, and table.py prints the README's table from these lists.
"""

import re
import warnings
from collections.abc import Callable
from unittest import mock

import torch
from pytorch_metric_learning import distances as pml_distances
from pytorch_metric_learning import losses, miners, regularizers
from pytorch_metric_learning.distances import BaseDistance
from torch import Tensor

from pml_nivmf.distances import (
    BhattacharyyaDistance,
    ExpectedLikelihoodDistance,
    ExpectedLikelihoodNivMFDistance,
    KLDistance,
    NivMFDistance,
    PPKDistance,
)

C, M = 3, 6
Make = Callable[..., object]

DISTANCES: dict[str, Callable[..., BaseDistance]] = {
    "PPKDistance": lambda **k: PPKDistance(0.7, **k),
    "ExpectedLikelihoodDistance": ExpectedLikelihoodDistance,
    "BhattacharyyaDistance": BhattacharyyaDistance,
    "KLDistance": KLDistance,
    "KLDistance paper": lambda **k: KLDistance("paper", **k),
    "NivMFDistance": NivMFDistance,
    "NivMFDistance paper": lambda **k: NivMFDistance("paper", **k),
    "ExpectedLikelihoodNivMFDistance": lambda **k: ExpectedLikelihoodNivMFDistance(n_samples=3, **k),
    "ExpectedLikelihoodNivMFDistance analytic": lambda **k: ExpectedLikelihoodNivMFDistance(estimator="analytic", **k),
}

_OF_CLASSES = (
    losses.ArcFaceLoss,
    losses.CosFaceLoss,
    losses.LargeMarginSoftmaxLoss,
    losses.NormalizedSoftmaxLoss,
    losses.ProxyAnchorLoss,
    losses.ProxyNCALoss,
    losses.SoftTripleLoss,
    losses.SphereFaceLoss,
    losses.SubCenterArcFaceLoss,
)
_OWN_ARGUMENTS: dict[type, dict[str, object]] = {
    **{kind: {"num_classes": C, "embedding_size": M} for kind in _OF_CLASSES},
    losses.P2SGradLoss: {"num_classes": C, "descriptors_dim": M},
    losses.ManifoldLoss: {"l": M, "K": C},
    losses.RankedListLoss: {"margin": 1.0, "Tn": 1.0},
    losses.HistogramLoss: {"n_bins": 10},
    losses.TripletMarginLoss: {"margin": 50.0},  # so wide that all triplets count
    losses.LiftedStructureLoss: {"neg_margin": 50.0},
    losses.GeneralizedLiftedStructureLoss: {"neg_margin": 50.0},
    losses.NTXentLoss: {"temperature": 5.0},
    miners.MultiSimilarityMiner: {"epsilon": 50.0},
    miners.TripletMarginMiner: {"margin": 50.0},
    miners.PairMarginMiner: {"pos_margin": -50.0, "neg_margin": 50.0},
    regularizers.SparseCentersRegularizer: {"num_classes": 2, "centers_per_class": 2},
}
# Abstract, or wrappers around other losses.
_NOT_BUILT = {
    *("BaseMetricLossFunction", "GenericPairLoss", "BaseLossWrapper", "MultipleLosses", "CrossBatchMemory"),
    *("SelfSupervisedLoss", "EmbeddingRegularizerMixin", "WeightRegularizerMixin"),
    *("BaseMiner", "EmbeddingsAlreadyPackagedAsTriplets", "BaseRegularizer"),
}


def classes_of(module: object) -> dict[str, type]:
    """All classes that a module of PML offers and that can be built."""
    found = {name: value for name, value in vars(module).items() if isinstance(value, type)}
    return {name: found[name] for name in sorted(found) if name not in _NOT_BUILT}


def build(kind: type, distance: BaseDistance) -> Callable[..., object]:
    torch.manual_seed(0)
    return kind(distance=distance, **_OWN_ARGUMENTS.get(kind, {}))


def a_batch(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(C).repeat_interleave(4)
    centres = 3 * torch.randn(C, M, generator=generator, dtype=torch.float64)
    embeddings = 2 * (centres[labels] + torch.randn(len(labels), M, generator=generator, dtype=torch.float64))
    return embeddings.to(dtype).requires_grad_(), labels


def outcome(kind: type, distance: BaseDistance) -> str:
    """ "works", or why not in a few words."""
    try:
        built = build(kind, distance)
    except (AssertionError, ValueError) as error:
        return _reason(kind, str(error))
    embeddings, labels = a_batch()
    arguments = (embeddings,) if _takes_no_labels(kind) else (embeddings, labels)
    with mock.patch.object(distance, "_compare", wraps=distance._compare) as compare, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PML about empty tensors and its own future
        try:
            built(*arguments)
        except RuntimeError:
            return "needs values from −1 to 1"
    return "works" if compare.called else "uses no distance"


def _takes_no_labels(kind: type) -> bool:
    return kind is losses.ManifoldLoss or issubclass(kind, regularizers.BaseRegularizer)


def _reason(kind: type, message: str) -> str:
    needed = re.search(r"requires the distance metric to be (\w+)", message)
    if needed:
        return f"needs {needed[1]}"
    if "cannot use a distance" in message:
        return "uses no distance"
    inverted = build(kind, pml_distances.CosineSimilarity())  # fine with a similarity: ours are distances
    assert inverted.distance.is_inverted
    return "needs a similarity"
