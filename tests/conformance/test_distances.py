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
from .catalogue import DISTANCES, C, M, a_batch, build, classes_of, outcome
from .oracles import PAIRS, Oracle

DTYPES = [torch.float16, torch.float32, torch.float64]  # those that PML's own tests go through
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


def expected_outcome(name):
    return next((reason for reason, names in REFUSING.items() if name in names), "works")


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
    for make in DISTANCES.values():
        assert outcome(ALL_CLASSES[name], make()) == expected_outcome(name)


def call(built, embeddings, labels):
    return built(embeddings) if isinstance(built, losses.ManifoldLoss) else built(embeddings, labels)


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_losses_are_those_over_mpmaths_distances(name):
    """The same PML loss, with a naive distance instead of ours, has the same value."""
    for distance, make in DISTANCES.items():
        embeddings, labels = a_batch(torch.float64)
        ours = build(ALL_CLASSES[name], make()).double()
        torch.manual_seed(1)
        value = call(ours, embeddings, labels)
        value.backward()
        assert torch.isfinite(embeddings.grad).all()
        if distance in PAIRS:
            theirs = build(ALL_CLASSES[name], Oracle(distance)).double()
            torch.manual_seed(1)
            with torch.no_grad():
                torch.testing.assert_close(value.detach(), call(theirs, embeddings.detach(), labels))
        assert value != 0, "the loss sees something"
        assert embeddings.grad.any()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", sorted(LOSSES))
def test_losses_in_all_dtypes(name, dtype, device):
    for make in DISTANCES.values():
        embeddings, labels = a_batch(dtype)
        embeddings = embeddings.detach().to(device).requires_grad_()
        value = call(build(ALL_CLASSES[name], make()).to(device), embeddings, labels.to(device))
        value.backward()
        assert torch.isfinite(value)
        assert torch.isfinite(embeddings.grad).all()
        assert embeddings.grad.dtype == dtype


def tuples(indices):
    """What was mined, whatever the order: of pairs at the same distance either may come first."""
    groups = [indices] if len(indices) == 3 else [indices[:2], indices[2:]]
    return [sorted(zip(*(column.tolist() for column in group), strict=True)) for group in groups]


@pytest.mark.parametrize("name", sorted(MINERS))
def test_miners_find_what_mpmaths_distances_find(name):
    for distance, make in DISTANCES.items():
        embeddings, labels = a_batch(torch.float64)
        torch.manual_seed(1)
        found = build(ALL_CLASSES[name], make())(embeddings, labels)
        anchors, positives = found[:2]
        others, negatives = (found[0], found[2]) if len(found) == 3 else found[2:]
        assert len(anchors) > 0
        assert (labels[anchors] == labels[positives]).all()
        assert (labels[others] != labels[negatives]).all()
        if distance in PAIRS:
            torch.manual_seed(1)
            expected = build(ALL_CLASSES[name], Oracle(distance))(embeddings.detach(), labels)
            assert tuples(found) == tuples(expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", sorted(MINERS))
def test_miners_in_all_dtypes(name, dtype, device):
    for make in DISTANCES.values():
        embeddings, labels = a_batch(dtype)
        found = build(ALL_CLASSES[name], make())(embeddings.detach().to(device), labels.to(device))
        assert all(indices.dtype == torch.long for indices in found)
        assert all(indices.device.type == device for indices in found)


@pytest.mark.parametrize("distance", PAIRS)
def test_search(distance):
    """CustomKNN, MatchFinder, InferenceModel and BatchedDistance against the sorted naive matrix."""
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
    threshold = matrix.median().item()
    finder = MatchFinder(make(), threshold=threshold + 1e-9)
    assert (torch.tensor(finder.get_matching_pairs(queries, refs)) == (matrix <= threshold + 1e-9)).all()
    assert finder.is_match(queries[:1], refs[:1]) is bool(matrix[0, 0] <= threshold)
    rows = []
    batched = pml_distances.BatchedDistance(make(), iter_fn=lambda part, start, end: rows.append(part), batch_size=2)
    batched(queries, refs)
    torch.testing.assert_close(torch.cat(rows), matrix)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("distance", PAIRS)
def test_search_in_all_dtypes(distance, dtype, device):
    """The neighbours are as near as float64's; which of two equally near ones comes first is left to rounding."""
    exact = a_batch(torch.float64)[0].detach()
    matrix = Oracle(distance)(exact[:5], exact[5:])
    embeddings = exact.to(device, dtype)
    values, neighbours = CustomKNN(DISTANCES[distance]())(embeddings[:5], 3, embeddings[5:])
    assert values.device.type == neighbours.device.type == device
    tolerance = {torch.float16: 0.05, torch.float32: 1e-4, torch.float64: 1e-9}[dtype]
    found, nearest = matrix.gather(1, neighbours.cpu()), matrix.sort(dim=1).values[:, :3]
    torch.testing.assert_close(found, nearest, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("distance", DISTANCES)
def test_inference_model_and_accuracy_calculator(distance):
    embeddings, labels = a_batch()
    embeddings = embeddings.detach()
    values = DISTANCES[distance]()(embeddings, embeddings)
    model = InferenceModel(
        torch.nn.Identity(),
        match_finder=MatchFinder(DISTANCES[distance](), threshold=values.median().item()),
        normalize_embeddings=False,
        data_device=torch.device("cpu"),
    )
    near, far = (embeddings[int(index)].unsqueeze(0) for index in (values[0].argmin(), values[0].argmax()))
    assert model.is_match(embeddings[:1], near)
    assert not model.is_match(embeddings[:1], far)
    for batch_size in (None, 5):
        search = CustomKNN(DISTANCES[distance](), batch_size=batch_size)
        calculator = AccuracyCalculator(include=("precision_at_1", "mean_average_precision_at_r"), knn_func=search)
        assert calculator.get_accuracy(embeddings, labels)["precision_at_1"] > 0.8


@pytest.mark.parametrize("distance", [name for name in DISTANCES if "NivMF" in name])
def test_packed_references_in_an_ordinary_triplet_loss(distance):
    """PML's ref_emb: images against nivMF proxies."""
    embeddings, labels = a_batch()
    loc = references.unit(C, M, dtype=torch.float32)
    refs = pack_nivmf(loc, 1 + 5 * torch.rand(C, M, generator=torch.Generator().manual_seed(1))).requires_grad_()
    loss = losses.TripletMarginLoss(distance=DISTANCES[distance](), margin=100.0)
    loss(embeddings, labels, ref_emb=refs, ref_labels=torch.arange(C)).backward()
    assert refs.grad.abs().sum() > 0
    assert torch.isfinite(embeddings.grad).all()


@pytest.mark.parametrize("distance", DISTANCES)
def test_wrappers_of_losses_take_our_distances(distance):
    embeddings, labels = a_batch()
    loss = losses.ContrastiveLoss(pos_margin=-50.0, neg_margin=50.0, distance=DISTANCES[distance]())
    values = {
        "CrossBatchMemory": losses.CrossBatchMemory(loss, M, memory_size=24)(embeddings, labels),
        "MultipleLosses": losses.MultipleLosses([loss, losses.TripletMarginLoss(distance=DISTANCES[distance]())])(
            embeddings, labels
        ),
        "SelfSupervisedLoss": losses.SelfSupervisedLoss(loss)(embeddings, embeddings.detach() + 0.1),
    }
    assert sorted(values) == sorted(WRAPPERS)
    for value in values.values():
        (gradient,) = torch.autograd.grad(value, embeddings)
        assert torch.isfinite(gradient).all()
        assert gradient.any()


@pytest.mark.parametrize("distance", DISTANCES)
def test_collect_stats(distance):
    embeddings, _ = a_batch()
    collecting = DISTANCES[distance](collect_stats=True)
    collecting(embeddings)
    expected = embeddings.norm(dim=1).mean().item()
    assert collecting.initial_avg_query_norm == pytest.approx(expected)
    assert collecting.final_avg_ref_norm == pytest.approx(expected, rel=1e-5)
