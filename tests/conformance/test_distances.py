"""Our distances in every loss, miner and search of PML that takes a foreign one; those that do not, refuse."""

import inspect

import pytest
import torch
from pytorch_metric_learning import distances as pml_distances
from pytorch_metric_learning import losses, miners, regularizers
from pytorch_metric_learning.utils import inference
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from pytorch_metric_learning.utils.inference import CustomKNN, InferenceModel, MatchFinder

from pml_nivmf.distances import pack_nivmf

from .. import references
from ..devices import DEVICES
from ..distances.variants import each
from .catalogue import DISTANCES, C, M, a_batch, build, call, classes_of, outcome
from .oracles import PAIRS, Oracle

LOSSES = {
    *("ContrastiveLoss", "GeneralizedLiftedStructureLoss", "IntraPairVarianceLoss", "LiftedStructureLoss"),
    *("ManifoldLoss", "MarginLoss", "MultiSimilarityLoss", "NCALoss", "NPairsLoss", "NTXentLoss"),
    *("NormalizedSoftmaxLoss", "ProxyAnchorLoss", "ProxyNCALoss", "RankedListLoss", "SupConLoss"),
    "TripletMarginLoss",
}
MINERS = {
    *("BatchEasyHardMiner", "BatchHardMiner", "HDCMiner", "MultiSimilarityMiner", "PairMarginMiner"),
    *("TripletMarginMiner", "UniformHistogramMiner"),
}
REFUSING = {
    "needs CosineSimilarity": {
        *("ArcFaceLoss", "CircleLoss", "CosFaceLoss", "InstanceLoss", "LargeMarginSoftmaxLoss", "PNPLoss"),
        *("SmoothAPLoss", "SphereFaceLoss", "SubCenterArcFaceLoss", "ThresholdConsistentMarginLoss"),
        *("TupletMarginLoss", "SparseCentersRegularizer"),
    },
    "needs LpDistance": {
        *("AngularLoss", "DynamicSoftMarginLoss", "FastAPLoss", "AngularMiner", "DistanceWeightedMiner"),
        "CenterInvariantRegularizer",
    },
    "needs SNRDistance": {"SignalToNoiseRatioContrastiveLoss"},
    "needs a similarity": {"SoftTripleLoss", "RegularFaceRegularizer"},
    "needs values from −1 to 1": {"HistogramLoss"},
    "uses no distance": {"P2SGradLoss", "VICRegLoss", "LpRegularizer", "ZeroMeanRegularizer"},
}
WRAPPERS = ("CrossBatchMemory", "MultipleLosses", "SelfSupervisedLoss")
SEARCH = ("AccuracyCalculator", "BatchedDistance", "CustomKNN", "InferenceModel", "MatchFinder")
SEARCH_WITHOUT_DISTANCE = ("FaissKMeans", "FaissKNN")
ALL_CLASSES = {**classes_of(losses), **classes_of(miners), **classes_of(regularizers)}
pytestmark = pytest.mark.filterwarnings("ignore")  # PML's own, about empty tensors


def test_every_class_of_pml_is_in_one_list():
    listed = [*LOSSES, *MINERS, *(name for names in REFUSING.values() for name in names)]
    assert sorted(listed) == sorted(ALL_CLASSES)


def test_every_search_of_pml_is_listed():
    offered = {name: value for name, value in vars(inference).items() if isinstance(value, type)}
    own = {name for name, value in offered.items() if value.__module__ == inference.__name__}
    assert own == {*SEARCH, *SEARCH_WITHOUT_DISTANCE} - {"AccuracyCalculator", "BatchedDistance"}
    for name in SEARCH_WITHOUT_DISTANCE:
        assert "distance" not in inspect.signature(offered[name]).parameters


@pytest.mark.parametrize("name", sorted(ALL_CLASSES))
def test_taken_or_refused_as_listed(name):
    expected = next((reason for reason, names in REFUSING.items() if name in names), "works")
    assert {outcome(ALL_CLASSES[name], make()) for make in DISTANCES.values()} == {expected}


def check_gradient(value, *inputs):
    for gradient, tensor in zip(torch.autograd.grad(value, inputs, retain_graph=True), inputs, strict=True):
        assert torch.isfinite(gradient).all()
        assert gradient.any()
        assert gradient.dtype == tensor.dtype


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_losses_are_those_over_mpmaths_distances(name):
    """The same PML loss, with a naive distance instead of ours, has the same value."""
    for distance, make in DISTANCES.items():
        embeddings, labels = a_batch(torch.float64)
        torch.manual_seed(1)
        value = call(build(ALL_CLASSES[name], make()).double(), embeddings, labels)
        check_gradient(value, embeddings)
        if distance in PAIRS:
            torch.manual_seed(1)
            expected = call(build(ALL_CLASSES[name], Oracle(distance)).double(), embeddings.detach(), labels)
            torch.testing.assert_close(value, expected)


def tuples(indices):
    """Mined tuples in a fixed order: of pairs at the same distance either may come first."""
    groups = [indices] if len(indices) == 3 else [indices[:2], indices[2:]]
    return [sorted(zip(*(column.tolist() for column in group), strict=True)) for group in groups]


@pytest.mark.parametrize("name", sorted(MINERS))
def test_miners_find_what_mpmaths_distances_find(name):
    embeddings, labels = a_batch(torch.float64)
    for distance, make in DISTANCES.items():
        torch.manual_seed(1)
        mined = build(ALL_CLASSES[name], make())(embeddings, labels)
        anchors, negatives = (mined[0], mined[2]) if len(mined) == 3 else mined[2:]
        assert len(mined[0]) > 0
        assert (labels[mined[0]] == labels[mined[1]]).all()
        assert (labels[anchors] != labels[negatives]).all()
        if distance in PAIRS:
            torch.manual_seed(1)
            expected = build(ALL_CLASSES[name], Oracle(distance))(embeddings.detach(), labels)
            assert tuples(mined) == tuples(expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])  # as in PML's own tests
@each(DISTANCES)
def test_dtypes_and_devices(make, dtype, device):
    embeddings, labels = (tensor.detach().to(device) for tensor in a_batch(dtype))
    embeddings.requires_grad_()
    for name in ("TripletMarginLoss", "ProxyAnchorLoss"):
        value = build(ALL_CLASSES[name], make()).to(device)(embeddings, labels)
        check_gradient(value, embeddings)
    mined = build(miners.TripletMarginMiner, make())(embeddings, labels)
    assert {(indices.dtype, indices.device.type) for indices in mined} == {(torch.long, device)}
    _, neighbours = CustomKNN(make())(embeddings.detach(), 1, embeddings.detach())
    assert (labels[neighbours.squeeze(1)] == labels).all()


@pytest.mark.parametrize("distance", PAIRS)
def test_search(distance):
    """CustomKNN, MatchFinder and BatchedDistance against the sorted naive matrix."""
    embeddings = a_batch(torch.float64)[0].detach()
    queries, refs = embeddings[:5], embeddings[5:]
    matrix = Oracle(distance)(queries, refs)
    make = DISTANCES[distance]
    for batch_size in (None, 2):
        values, neighbours = CustomKNN(make(), batch_size=batch_size)(queries, 3, refs)
        nearest = matrix.sort(dim=1)
        assert torch.equal(neighbours, nearest.indices[:, :3])
        # PML collects batches in float32
        torch.testing.assert_close(values.double(), nearest.values[:, :3], rtol=1e-6, atol=1e-5)
    threshold = matrix.median().item() + 1e-9
    matches = MatchFinder(make(), threshold=threshold).get_matching_pairs(queries, refs)
    assert (torch.tensor(matches) == (matrix <= threshold)).all()
    rows = []
    batched = pml_distances.BatchedDistance(make(), iter_fn=lambda part, start, end: rows.append(part), batch_size=2)
    batched(queries, refs)
    torch.testing.assert_close(torch.cat(rows), matrix)


@each(DISTANCES)
def test_inference_model_and_accuracy_calculator(make):
    embeddings, labels = a_batch()
    embeddings = embeddings.detach()
    values = make()(embeddings, embeddings)
    finder = MatchFinder(make(), threshold=values.median().item())
    cpu = torch.device("cpu")
    model = InferenceModel(torch.nn.Identity(), match_finder=finder, normalize_embeddings=False, data_device=cpu)
    near, far = (embeddings[int(index)].unsqueeze(0) for index in (values[0].argmin(), values[0].argmax()))
    assert model.is_match(embeddings[:1], near)
    assert not model.is_match(embeddings[:1], far)
    calculator = AccuracyCalculator(include=("precision_at_1",), knn_func=CustomKNN(make(), batch_size=5))
    assert calculator.get_accuracy(embeddings, labels)["precision_at_1"] > 0.8


@pytest.mark.parametrize("distance", [name for name in DISTANCES if "nivMF" in name])
def test_packed_references_in_an_ordinary_triplet_loss(distance):
    """PML's ref_emb: images against nivMF proxies."""
    embeddings, labels = a_batch()
    loc = references.unit(C, M, dtype=torch.float32)
    refs = pack_nivmf(loc, 1 + 5 * torch.rand(C, M, generator=torch.Generator().manual_seed(1))).requires_grad_()
    loss = losses.TripletMarginLoss(distance=DISTANCES[distance](), margin=100.0)
    value = loss(embeddings, labels, ref_emb=refs, ref_labels=torch.arange(C))
    check_gradient(value, embeddings, refs)


@each(DISTANCES)
def test_wrappers_of_losses_take_our_distances(make):
    embeddings, labels = a_batch()
    loss = losses.ContrastiveLoss(pos_margin=-50.0, neg_margin=50.0, distance=make())
    triplets = losses.TripletMarginLoss(distance=make())
    values = {
        "CrossBatchMemory": losses.CrossBatchMemory(loss, M, memory_size=24)(embeddings, labels),
        "MultipleLosses": losses.MultipleLosses([loss, triplets])(embeddings, labels),
        "SelfSupervisedLoss": losses.SelfSupervisedLoss(loss)(embeddings, embeddings.detach() + 0.1),
    }
    assert sorted(values) == sorted(WRAPPERS)
    for value in values.values():
        check_gradient(value, embeddings)


@each(DISTANCES)
def test_collect_stats(make):
    embeddings, _ = a_batch()
    collecting = make(collect_stats=True)
    collecting(embeddings)
    expected = embeddings.norm(dim=1).mean().item()
    assert collecting.initial_avg_query_norm == pytest.approx(expected)
    assert collecting.final_avg_ref_norm == pytest.approx(expected, rel=1e-5)
