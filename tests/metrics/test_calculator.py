"""Retrieval metrics of the calculator against naive loops and against PML's own calculator."""

import copy

import numpy as np
import pytest
import torch
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.testers import GlobalEmbeddingSpaceTester
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from pytorch_metric_learning.utils.inference import CustomKNN
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import TensorDataset

from pml_nivmf.metrics import CERTAINTY_METRICS, DIVERSITY_METRICS, ProbabilisticAccuracyCalculator

from . import naive
from .naive import data

CLUSTERING = ("NMI", "AMI")


def calculator(**kwargs):
    return ProbabilisticAccuracyCalculator(**{"exclude": CLUSTERING, "device": "cpu", **kwargs})


def pml_calculator(**kwargs):
    return AccuracyCalculator(device=torch.device("cpu"), **kwargs)


def assert_same(ours, expected):
    for name, value in expected.items():
        np.testing.assert_allclose(ours[name], value, rtol=1e-6, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("retrieval", ["cosine", "l2"])
@pytest.mark.parametrize("k", [None, 5, "max_bin_count"])
def test_naive_loops(retrieval, k):
    """`k` limits mean_average_precision and mean_reciprocal_rank only. Lone queries are left out."""
    x, y = data()
    recall_at = (1, 3, 10)
    ours = calculator(retrieval=retrieval, k=k, recall_at=recall_at).get_accuracy(x, y)
    limit = int(torch.bincount(y).max()) - 1 if k == "max_bin_count" else k
    scored = naive.per_query(x, y.tolist(), x, y.tolist(), True, retrieval, recall_at, limit)
    assert len(scored) == 58
    assert ours.keys() == naive.averages(scored).keys()
    assert_same(ours, naive.averages(scored))
    assert ours["recall_at_1"] == ours["precision_at_1"]


@pytest.mark.parametrize("retrieval", ["cosine", "l2"])
def test_pml(retrieval):
    """All of PML's metrics, clustering included. PML needs normalised embeddings for cosine retrieval."""
    x, y = data(200)
    ours = ProbabilisticAccuracyCalculator(device="cpu", retrieval=retrieval).get_accuracy(x, y)
    assert_same(ours, pml_calculator().get_accuracy(F.normalize(x) if retrieval == "cosine" else x, y))


def test_map_at_1000_is_pmls_with_k_1000():
    x, y = data(1500, classes=3)
    pml = pml_calculator(include=("mean_average_precision",), k=1000).get_accuracy(F.normalize(x), y)
    ours = calculator(include=("map_at_1000", "mean_average_precision"), exclude=()).get_accuracy(x, y)
    assert ours["map_at_1000"] == pytest.approx(pml["mean_average_precision"], rel=1e-6)
    assert ours["mean_average_precision"] > ours["map_at_1000"] + 1e-3  # all 1499 neighbours


@pytest.mark.parametrize("k", [4, 5, 1000, None])
def test_k_as_large_as_the_data(k):
    """faiss pads with -1, which PML would read as the last item."""
    x, y = data(5, classes=2, lone=0, seed=3)
    recall_at = (1, 4, 5, 100)
    ours = calculator(k=k, recall_at=recall_at).get_accuracy(x, y)
    assert_same(ours, naive.averages(naive.per_query(x, y.tolist(), x, y.tolist(), True, recall_at=recall_at, k=k)))
    other, other_labels = data(3, classes=2, lone=0, seed=4)
    ours = calculator(k=k).get_accuracy(x, y, other, other_labels)
    assert_same(ours, naive.averages(naive.per_query(x, y.tolist(), other, other_labels.tolist(), False, k=k)))


@pytest.mark.parametrize("per_class", [False, True])
def test_nothing_to_find(per_class):
    x, y = torch.randn(4, 3), torch.arange(4)
    for arguments in ((x, y), (x[:1], y[:1]), (x, y, x, y + 10)):
        ours = calculator(return_per_class=per_class).get_accuracy(*arguments)
        assert all(np.isnan(value).all() for value in ours.values())


class LargestTensor(TorchDispatchMode):
    size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.size = max(self.size, result.numel() * result.element_size())
        return result


def test_memory_grows_with_queries_times_neighbours():
    """No (classes, references) matrix, which PML makes for torch.eq."""
    x, y = torch.randn(2000, 4), torch.arange(2000) % 1000
    with LargestTensor() as largest:
        calculator(include=("recall_at_10", "mean_average_precision_at_r", "aurc_ppk"), exclude=()).get_accuracy(x, y)
    assert largest.size <= 8 * len(x) * 11  # float64 or int64, one neighbour more for the query itself


@pytest.mark.parametrize("own", [True, False])
def test_class_averages(own):
    x, y = data()
    reference, reference_labels = (x, y) if own else data(50, seed=1)
    arguments = (x, y, reference, reference_labels, own)
    scored = naive.per_query(x, y.tolist(), reference, reference_labels.tolist(), own)
    expected = naive.class_averages(scored)
    assert_same(calculator(return_per_class=True).get_accuracy(*arguments), expected)
    averaged = calculator(avg_of_avgs=True).get_accuracy(*arguments)
    assert_same(averaged, {name: np.mean(values) for name, values in expected.items()})


def test_include_and_exclude():
    x, y = data()
    chosen = calculator(include=("recall_at_16", "r_precision", "recall_at_2"), exclude=())
    assert set(chosen.get_accuracy(x, y)) == {"r_precision", "recall_at_2", "recall_at_16"}
    assert set(chosen.get_accuracy(x, y, include=("recall_at_2",))) == {"recall_at_2"}
    assert set(chosen.get_accuracy(x, y, exclude=("recall_at_2",))) == {"r_precision", "recall_at_16"}
    assert calculator(include=["NMI"], exclude=[]).get_accuracy(x, y).keys() == {"NMI"}
    assert set(calculator().get_curr_metrics()).isdisjoint((*CERTAINTY_METRICS, *DIVERSITY_METRICS))


def test_other_searches():
    x, y = data()
    exact = CustomKNN(LpDistance(normalize_embeddings=False), batch_size=16)
    assert_same(copy.deepcopy(calculator(knn_func=exact)).get_accuracy(x, y), calculator().get_accuracy(x, y))

    def padded(query, k, reference, ref_includes_query):
        return torch.zeros(len(query), k), torch.full((len(query), k), -1)

    with pytest.raises(ValueError, match=r"knn_func found fewer than k=\d+ neighbours: use an exact index"):
        calculator(knn_func=padded).get_accuracy(x, y)


def test_custom_label_comparison():
    """Labels with two columns, of which the first counts."""
    x, y = data(80, lone=0)
    levels = torch.stack([y, torch.arange(80)], dim=1)

    def first_level(a, b):
        return a[..., 0] == b[..., 0]

    ours = calculator(label_comparison_fn=first_level).get_accuracy(x, levels)
    assert_same(ours, calculator().get_accuracy(x, y))
    for include in ("NMI", "cluster_diversity"):
        with pytest.raises(NotImplementedError):
            calculator(include=(include,), exclude=(), label_comparison_fn=first_level)


def test_kinds_of_input():
    x, y = data()
    expected = calculator().get_accuracy(x, y)
    for embeddings, labels in (
        (x.numpy()[::-1], y.numpy()[::-1]),  # torch does not accept negative strides
        (x.double().requires_grad_(), y.tolist()),
        (x, y + 2**30),  # as float32, which PML uses, these are one label
        (x.T.contiguous().T, torch.stack([y, y], dim=1)[:, 0].float()),  # not contiguous
    ):
        assert_same(calculator().get_accuracy(embeddings, labels), expected)


class WithSecond(ProbabilisticAccuracyCalculator):
    """PML's documented way to add a metric."""

    def requires_knn(self):
        return [*super().requires_knn(), "second_is_right"]

    def calculate_second_is_right(self, query, knn_labels, knn_distances, query_labels, not_lone_query_mask, **kwargs):
        assert knn_labels.shape == knn_distances.shape == (len(query_labels), 5)
        assert query.norm(dim=1).max() > 20  # raw
        return (knn_labels[:, 1] == query_labels)[not_lone_query_mask].double().mean().item()


def test_metric_of_a_subclass():
    x, y = data()
    ours = WithSecond(k=5, device="cpu", exclude=CLUSTERING).get_accuracy(x, y)
    rows = naive.ranking(x, x, True, "cosine")
    expected = [bool(y[row[1]] == y[i]) for i, row in enumerate(rows) if y[i] < 1000]
    assert ours["second_is_right"] == pytest.approx(np.mean(expected))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
def test_embeddings_that_are_not_finite(bad):
    x, y = data()
    x[17, 2] = x[40, 0] = bad
    with pytest.raises(ValueError, match=r"query embeddings must not contain NaN, infinity or .* found in row 17"):
        calculator().get_accuracy(x, y)
    with pytest.raises(ValueError, match="reference embeddings must not contain NaN"):
        calculator().get_accuracy(*data(), x, y)


def test_invalid_input():
    x, y = data()
    with pytest.raises(ValueError, match=r"query_labels must have shape \(60,\), one for each item, got \(59,\)"):
        calculator().get_accuracy(x, y[1:])
    with pytest.raises(ValueError, match="at least one item"):
        calculator().get_accuracy(x[:0], y[:0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"retrieval": "dot"}, "retrieval must be one of cosine, l2, got 'dot'"),
        ({"recall_at": (1, 0)}, "recall_at must be an integer of at least 1, got 0"),
        ({"include": ("recall_at_0",)}, "recall_at_8"),
    ],
)
def test_invalid_options(options, message):
    with pytest.raises(ValueError, match=message):
        calculator(**options)


@pytest.mark.parametrize("retrieval", ["cosine", "l2"])
def test_raw_norms_reach_the_calculator_in_pmls_tester(retrieval):
    """A split in itself, another split and two joined splits as references."""
    tester = GlobalEmbeddingSpaceTester(
        normalize_embeddings=False,
        accuracy_calculator=calculator(retrieval=retrieval),
        dataloader_num_workers=0,
        data_device=torch.device("cpu"),
    )
    splits = {name: data(count, lone=0) for name, count in (("train", 40), ("val", 30), ("test", 50))}
    searches = [("train", ["train"]), ("val", ["train"]), ("test", ["train", "test"])]
    datasets = {name: TensorDataset(*split) for name, split in splits.items()}
    ours = tester.test(datasets, 1, torch.nn.Identity(), splits_to_eval=searches)
    train, val, test = ((x, y.tolist()) for x, y in splits.values())
    joined = torch.cat([test[0], train[0]]), test[1] + train[1]
    for name, expected in (
        ("train", naive.per_query(*train, *train, True, retrieval)),
        ("val", naive.per_query(*val, *train, False, retrieval)),
        ("test", naive.per_query(*test, *joined, True, retrieval)),
    ):
        assert_same(ours[name], {f"{metric}_level0": value for metric, value in naive.averages(expected).items()})
