"""The calculator against naive loops and against PML's own."""

import copy
import pickle

import numpy as np
import pytest
import torch
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from pytorch_metric_learning.utils.inference import CustomKNN
from torch.nn import functional as F

from pml_nivmf.metrics import ProbabilisticAccuracyCalculator

from . import naive

NO_CLUSTERS = ("NMI", "AMI")
PML_NEIGHBOUR_METRICS = (
    "precision_at_1",
    "r_precision",
    "mean_average_precision_at_r",
    "mean_average_precision",
    "mean_reciprocal_rank",
)


def data(count=60, classes=7, dim=6, seed=0, lone=2):
    """Clustered directions with norms between 0.1 and 30; the last `lone` items are alone in their class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (count,), generator=generator)
    labels[count - lone :] = torch.arange(1000, 1000 + lone)
    centres = torch.randn(1002, dim, generator=generator)
    directions = centres[labels] + torch.randn(count, dim, generator=generator)
    return directions * torch.logspace(-1, 1.5, count)[torch.randperm(count, generator=generator)][:, None], labels


def calculator(**kwargs):
    return ProbabilisticAccuracyCalculator(**{"exclude": NO_CLUSTERS, "device": "cpu", **kwargs})


def assert_same(ours, expected, names=None):
    for name in names or expected:
        np.testing.assert_allclose(ours[name], expected[name], rtol=1e-6, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("retrieval", ["cosine", "l2"])
@pytest.mark.parametrize("k", [None, 5, "max_bin_count"])
def test_naive_loops(retrieval, k):
    x, y = data()
    recall_at = (1, 3, 10)
    ours = calculator(retrieval=retrieval, k=k, recall_at=recall_at).get_accuracy(x, y)
    number = int(torch.bincount(y).max()) - 1 if k == "max_bin_count" else k
    scored = naive.per_query(x, y.tolist(), x, y.tolist(), True, retrieval, recall_at, number)
    assert len(scored) == 58
    assert ours.keys() == naive.averages(scored).keys()
    assert_same(ours, naive.averages(scored))


@pytest.mark.parametrize("retrieval", ["cosine", "l2"])
def test_naive_loops_with_separate_references(retrieval):
    query, query_labels = data(30)
    reference, reference_labels = data(50, seed=1, lone=0)  # the queries' lone labels are not in it
    ours = calculator(retrieval=retrieval).get_accuracy(query, query_labels, reference, reference_labels)
    scored = naive.per_query(query, query_labels.tolist(), reference, reference_labels.tolist(), False, retrieval)
    assert len(scored) == 28
    assert_same(ours, naive.averages(scored))
    assert ours["map_at_1000"] == ours["map_at_1000_with_query"]


def test_references_that_start_with_the_queries():
    query, query_labels = data(20)
    more, more_labels = data(30, seed=1)
    reference, reference_labels = torch.cat([query, more]), torch.cat([query_labels, more_labels])
    ours = calculator().get_accuracy(query, query_labels, reference, reference_labels, ref_includes_query=True)
    scored = naive.per_query(query, query_labels.tolist(), reference, reference_labels.tolist(), True)
    assert_same(ours, naive.averages(scored))


def test_pml_on_normalised_embeddings():
    """All of PML's metrics, clustering included, though ours gets raw embeddings."""
    x, y = data(200)
    pml = AccuracyCalculator(device=torch.device("cpu")).get_accuracy(F.normalize(x), y)
    ours = ProbabilisticAccuracyCalculator(device="cpu").get_accuracy(x, y)
    assert set(pml) == {*PML_NEIGHBOUR_METRICS, *NO_CLUSTERS}
    assert_same(ours, pml)
    assert ours["recall_at_1"] == ours["precision_at_1"]


def test_pml_on_raw_embeddings_is_l2():
    x, y = data(200)
    pml = AccuracyCalculator(device=torch.device("cpu")).get_accuracy(x, y)
    assert_same(ProbabilisticAccuracyCalculator(device="cpu", retrieval="l2").get_accuracy(x, y), pml)


def test_map_at_1000_is_pmls_with_k_1000():
    x, y = data(1500, classes=3)
    pml = AccuracyCalculator(include=("mean_average_precision",), k=1000, device=torch.device("cpu"))
    expected = pml.get_accuracy(F.normalize(x), y)["mean_average_precision"]
    ours = calculator(include=("map_at_1000", "map_at_1000_with_query", "mean_average_precision")).get_accuracy(x, y)
    assert ours["map_at_1000"] == pytest.approx(expected, rel=1e-6)
    assert ours["mean_average_precision"] > expected + 1e-3  # all 1499 neighbours


def test_the_two_denominators():
    """A perfect ranking in classes of four: 3/3 and 3/4."""
    x = torch.eye(5).repeat_interleave(4, dim=0) + 1e-3 * torch.randn(20, 5, generator=torch.manual_seed(0))
    ours = calculator().get_accuracy(x, torch.arange(5).repeat_interleave(4))
    assert ours["map_at_1000"] == pytest.approx(1.0)
    assert ours["map_at_1000_with_query"] == pytest.approx(0.75)


def test_cosine_and_l2_differ():
    """The nearest direction is far away, the nearest point has another direction."""
    x = torch.tensor([[1.0, 0.0], [100.0, 1.0], [1.0, 0.7], [60.0, 42.5]])
    y = torch.tensor([0, 0, 1, 1])
    include = ("recall_at_1",)
    assert calculator(include=include, exclude=()).get_accuracy(x, y) == {"recall_at_1": 1.0}
    assert calculator(include=include, exclude=(), retrieval="l2").get_accuracy(x, y) == {"recall_at_1": 0.0}


def test_cosine_ignores_norms_of_any_size():
    x, y = data()
    sizes = torch.logspace(-18, 18, len(x))[torch.randperm(len(x), generator=torch.manual_seed(0))][:, None]
    assert_same(calculator().get_accuracy(F.normalize(x) * sizes, y), calculator().get_accuracy(x, y))


@pytest.mark.parametrize("k", [4, 5, 6, 1000, None, "max_bin_count"])
def test_k_as_large_as_the_data(k):
    """faiss fills up with -1, PML reads that as the last item."""
    x, y = data(5, classes=2, lone=0, seed=3)
    ours = calculator(k=k, recall_at=(1, 4, 5, 100)).get_accuracy(x, y)
    number = int(torch.bincount(y).max()) - 1 if k == "max_bin_count" else k
    scored = naive.per_query(x, y.tolist(), x, y.tolist(), True, recall_at=(1, 4, 5, 100), k=number)
    assert_same(ours, naive.averages(scored))
    other, other_labels = data(3, classes=2, lone=0, seed=4)
    ours = calculator(k=k).get_accuracy(x, y, other, other_labels)
    number = int(torch.bincount(other_labels).max()) if k == "max_bin_count" else k
    scored = naive.per_query(x, y.tolist(), other, other_labels.tolist(), False, k=number)
    assert_same(ours, naive.averages(scored))


def test_k_smaller_than_a_class_leaves_other_metrics_alone():
    x, y = data(100, classes=3)
    few, all_of_them = calculator(k=2).get_accuracy(x, y), calculator().get_accuracy(x, y)
    depends_on_k = {"mean_average_precision", "mean_reciprocal_rank"}
    assert {name for name in few if few[name] != all_of_them[name]} == depends_on_k


def test_nothing_to_find():
    x = torch.randn(4, 3)
    for items in (x, x[:1]):
        ours = calculator().get_accuracy(items, torch.arange(len(items)))
        assert all(np.isnan(value) for value in ours.values())
        listed = calculator(return_per_class=True).get_accuracy(items, torch.arange(len(items)))
        assert all(len(value) == len(items) and np.isnan(value).all() for value in listed.values())
    ours = calculator().get_accuracy(x, torch.arange(4), x, torch.arange(4) + 10)
    assert all(np.isnan(value) for value in ours.values())


@pytest.mark.parametrize("batch_size", [1, 7, 32, 59, 60, 1000])
def test_chunks_do_not_change_anything(batch_size):
    x, y = data()
    assert_same(calculator(batch_size=batch_size).get_accuracy(x, y), calculator().get_accuracy(x, y))
    query, labels = data(33, seed=1)
    once, chunked = calculator(), calculator(batch_size=batch_size)
    assert_same(chunked.get_accuracy(query, labels, x, y), once.get_accuracy(query, labels, x, y))


def test_duplicates_crowd_out_the_query():
    """More copies than neighbours: a query may not be among its own neighbours, and k of them must be left."""
    x = torch.ones(30, 4)
    y = torch.arange(30) % 2
    ours = calculator(k=3, batch_size=4).get_accuracy(x, y)
    assert all(0 <= value <= 1 for value in ours.values())


@pytest.mark.parametrize("own", [True, False])
def test_class_averages(own):
    x, y = data()
    reference, reference_labels = (x, y) if own else data(50, seed=1)
    arguments = (x, y, reference, reference_labels, own)
    scored = naive.per_query(x, y.tolist(), reference, reference_labels.tolist(), own)
    expected = naive.class_averages(scored)
    listed = calculator(return_per_class=True, batch_size=11).get_accuracy(*arguments)
    assert_same(listed, expected)
    averaged = calculator(avg_of_avgs=True).get_accuracy(*arguments)
    assert_same(averaged, {name: np.mean(values) for name, values in expected.items()})
    pml = AccuracyCalculator(return_per_class=True, exclude=NO_CLUSTERS, device=torch.device("cpu"))
    if own:
        assert_same(listed, pml.get_accuracy(F.normalize(x), y))


def test_include_and_exclude():
    x, y = data()
    chosen = calculator(include=("recall_at_16", "r_precision", "recall_at_2"), exclude=())
    assert list(chosen.get_accuracy(x, y)) == ["r_precision", "recall_at_2", "recall_at_16"]
    assert list(chosen.get_accuracy(x, y, include=("recall_at_2",))) == ["recall_at_2"]
    assert list(chosen.get_accuracy(x, y, exclude=("recall_at_2",))) == ["r_precision", "recall_at_16"]
    assert chosen.get_curr_metrics() == ["r_precision", "recall_at_16"]
    assert "recall_at_2" not in calculator(exclude=("recall_at_2", *NO_CLUSTERS)).get_accuracy(x, y)
    assert calculator(include=["NMI"], exclude=[]).get_accuracy(x, y).keys() == {"NMI"}
    assert not any(name.startswith("recall") for name in calculator(recall_at=()).get_curr_metrics())


def test_recalls_are_listed_in_the_order_of_k():
    names = calculator(recall_at=[100, 1, 10, 2, 1]).get_curr_metrics()
    assert [name for name in names if "recall" in name] == [f"recall_at_{k}" for k in (1, 2, 10, 100)]


def test_other_neighbour_searches():
    x, y = data()
    exact = CustomKNN(LpDistance(normalize_embeddings=False), batch_size=16)
    assert_same(calculator(knn_func=exact, batch_size=9).get_accuracy(x, y), calculator().get_accuracy(x, y))


def test_a_search_that_finds_too_few():
    def padded(query, k, reference, ref_includes_query):
        return torch.zeros(len(query), k), torch.full((len(query), k), -1)

    with pytest.raises(ValueError, match=r"knn_func found fewer than k=\d+ neighbours: use an exact index"):
        calculator(knn_func=padded).get_accuracy(*data())


def test_own_label_comparison():
    """Two-level labels: PML and ours agree, and equality on one of the levels is the plain case."""
    x, y = data(80, lone=0)
    levels = torch.stack([y, torch.arange(80)], dim=1)

    def first_level(a, b):
        return a[..., 0] == b[..., 0]

    ours = calculator(label_comparison_fn=first_level).get_accuracy(x, levels)
    assert_same(ours, calculator().get_accuracy(x, y))
    pml = AccuracyCalculator(label_comparison_fn=first_level, exclude=NO_CLUSTERS, device=torch.device("cpu"))
    assert_same(ours, pml.get_accuracy(F.normalize(x), levels))
    with pytest.raises(NotImplementedError):
        ProbabilisticAccuracyCalculator(label_comparison_fn=first_level)


def test_kinds_of_input():
    x, y = data()
    expected = calculator().get_accuracy(x, y)
    for embeddings, labels in (
        (x.numpy(), y.numpy()),
        (x.double().requires_grad_(), y.int()),
        (x, y + 2**30),  # PML's float32 labels would merge these
        (x, y.float()),
        (x.T.contiguous().T, torch.stack([y, y], dim=1)[:, 0]),  # not contiguous
        (x, y.tolist()),
    ):
        assert_same(calculator().get_accuracy(embeddings, labels), expected)


def test_copies_and_pickles():
    x, y = data()
    original = calculator(recall_at=(3,))
    for twin in (copy.deepcopy(original), pickle.loads(pickle.dumps(original))):
        assert twin.get_accuracy(x, y) == original.get_accuracy(x, y)
        twin.avg_of_avgs = True
        assert twin.get_accuracy(x, y) != original.get_accuracy(x, y)


class WithOwnMetrics(ProbabilisticAccuracyCalculator):
    """PML's documented way to add metrics."""

    def requires_knn(self):
        return [*super().requires_knn(), "second_is_right", "norm_gap"]

    def calculate_second_is_right(self, knn_labels, query_labels, knn_distances, not_lone_query_mask, **kwargs):
        assert knn_labels.shape == knn_distances.shape == (len(query_labels), 5)
        assert (knn_distances.diff(dim=1) >= 0).all()
        return (knn_labels[:, 1] == query_labels)[not_lone_query_mask].double().mean().item()

    def calculate_norm_gap(self, raw_query, query, per_query, **kwargs):
        torch.testing.assert_close(query.norm(dim=1), torch.ones(len(query)))
        right = per_query["precision_at_1"] == 1
        return (raw_query[right].norm(dim=1).mean() - raw_query[~right].norm(dim=1).mean()).item()


def test_metrics_of_a_subclass():
    x, y = data()
    ours = WithOwnMetrics(k=5, device="cpu", exclude=NO_CLUSTERS, batch_size=13).get_accuracy(x, y)
    rows = naive.ranking(x, x, True, "cosine")
    expected = [bool(y[row[1]] == y[i]) for i, row in enumerate(rows) if y[i] < 1000]
    assert ours["second_is_right"] == pytest.approx(np.mean(expected))
    right = torch.tensor([bool(y[row[0]] == y[i]) for i, row in enumerate(rows)])
    norms = x.norm(dim=1)
    assert ours["norm_gap"] == pytest.approx((norms[right].mean() - norms[~right].mean()).item(), rel=1e-5)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (float("nan"), r"query embeddings hold NaN, first in row 17"),
        (float("inf"), r"query embeddings hold infinity, first in row 17"),
        (1e30, r"query embeddings: the norm of row 17 is too large to be squared"),
    ],
)
def test_embeddings_that_are_not_finite(bad, message):
    x, y = data()
    x[17, 2] = bad
    x[40] = bad
    with pytest.raises(ValueError, match=message):
        calculator().get_accuracy(x, y)
    clean = data()
    with pytest.raises(ValueError, match=message.replace("query", "reference")):
        calculator().get_accuracy(*clean, x, y)


def test_input_that_does_not_fit():
    x, y = data()
    with pytest.raises(ValueError, match=r"query embeddings and labels must have the same length, got 60 and 59"):
        calculator().get_accuracy(x, y[1:])
    with pytest.raises(ValueError, match=r"at least one item, got \(0, 6\)"):
        calculator().get_accuracy(x[:0], y[:0])
    with pytest.raises(ValueError, match=r"reference embeddings came without labels"):
        calculator().get_accuracy(x, y, x)
    with pytest.raises(ValueError, match=r"the first 60 reference embeddings and labels must be the query's"):
        calculator().get_accuracy(x, y, x.flip(0), y.flip(0), ref_includes_query=True)
    with pytest.raises(ValueError, match=r"the first 60 reference embeddings"):
        calculator().get_accuracy(x, y, x[:30], y[:30], ref_includes_query=True)
    with pytest.raises(ValueError, match=r"query_labels must have shape \(items,\), got \(60, 1\)"):
        calculator().get_accuracy(x, y[:, None])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"retrieval": "dot"}, ValueError, r"retrieval must be one of cosine, l2, got 'dot'"),
        ({"recall_at": (1, 0)}, ValueError, r"recall_at must be an integer of at least 1, got 0"),
        ({"recall_at": 5}, ValueError, r"recall_at must be a list of integers, got 5"),
        ({"batch_size": 0}, ValueError, r"batch_size must be an integer of at least 1, got 0"),
        ({"k": 0}, ValueError, r"k must be an integer"),
        ({"include": "NMI"}, TypeError, r"include must be a list of metrics, got the string 'NMI'"),
        ({"include": ("recall_at_0",)}, ValueError, r"recall_at_8"),
        ({"avg_of_avgs": True, "return_per_class": True}, ValueError, r"mutually exclusive"),
        ({"label_comparison_fn": torch.ne, "exclude": ()}, NotImplementedError, r"custom label comparison"),
    ],
)
def test_options_that_do_not_fit(options, error, message):
    with pytest.raises(error, match=message):
        calculator(**options)
