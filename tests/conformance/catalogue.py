"""All classes of PML that take a distance, how to build each, and what happens with a distance of ours in it."""

import re
import warnings
from collections.abc import Callable
from unittest import mock

import torch
from pytorch_metric_learning import distances as pml_distances
from pytorch_metric_learning import losses, miners, regularizers
from pytorch_metric_learning.distances import BaseDistance
from torch import Tensor

from ..distances.variants import ALL

C, M = 3, 6
# PML's classes call formulas of the paper, and other approximations, in the same way.
DISTANCES: dict[str, Callable[..., BaseDistance]] = {
    n: make for n, make in ALL.items() if not n.endswith(("paper", "second order"))
}
_OF_CLASSES = (
    *("ArcFaceLoss", "CosFaceLoss", "LargeMarginSoftmaxLoss", "NormalizedSoftmaxLoss", "ProxyAnchorLoss"),
    *("ProxyNCALoss", "SoftTripleLoss", "SphereFaceLoss", "SubCenterArcFaceLoss"),
)
_OWN_ARGUMENTS: dict[type, dict[str, object]] = {
    **{getattr(losses, name): {"num_classes": C, "embedding_size": M} for name in _OF_CLASSES},
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
    *("GenericPairLoss", "MultipleLosses", "CrossBatchMemory", "SelfSupervisedLoss", "EmbeddingRegularizerMixin"),
    *("WeightRegularizerMixin", "EmbeddingsAlreadyPackagedAsTriplets"),
}


def classes_of(module: object) -> dict[str, type]:
    """All classes that a module of PML offers and that can be built."""
    classes = {name: value for name, value in vars(module).items() if isinstance(value, type)}
    return {name: value for name, value in classes.items() if name not in _NOT_BUILT and not name.startswith("Base")}


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
    calls = {name: mock.Mock(wraps=getattr(distance, name)) for name in ("compute_mat", "pairwise_distance")}
    with mock.patch.multiple(distance, **calls), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PML about empty tensors and its own future
        try:
            call(built, *a_batch())
        except RuntimeError:
            return "needs values from −1 to 1"
    return "works" if any(call.called for call in calls.values()) else "uses no distance"


def call(built: Callable, embeddings: Tensor, labels: Tensor) -> Tensor:
    takes_no_labels = isinstance(built, losses.ManifoldLoss | regularizers.BaseRegularizer)
    return built(embeddings) if takes_no_labels else built(embeddings, labels)


def _reason(kind: type, message: str) -> str:
    needed = re.search(r"requires the distance metric to be (\w+)", message)
    if needed:
        return f"needs {needed[1]}"
    if "cannot use a distance" in message:
        return "uses no distance"
    assert build(kind, pml_distances.CosineSimilarity()).distance.is_inverted, message
    return "needs a similarity"
