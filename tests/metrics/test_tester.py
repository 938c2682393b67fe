"""Through PML's tester, which keeps the norms when told to."""

import pytest
import torch
from pytorch_metric_learning import testers
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from torch import nn
from torch.utils.data import TensorDataset

from pml_nivmf.metrics import ProbabilisticAccuracyCalculator

from . import naive


@pytest.fixture
def splits():
    torch.manual_seed(0)
    sets = {}
    for name, count in (("train", 40), ("val", 30), ("test", 50)):
        labels = torch.arange(count) % 6
        x = torch.randn(6, 5)[labels] + torch.randn(count, 5)
        sets[name] = TensorDataset(x * torch.logspace(-1, 1, count)[:, None], labels)
    return sets


def run(calculator, splits, splits_to_eval=None, normalize=False, **kwargs):
    tester = testers.GlobalEmbeddingSpaceTester(
        normalize_embeddings=normalize,
        accuracy_calculator=calculator,
        dataloader_num_workers=0,
        data_device=torch.device("cpu"),
        end_of_testing_hook=lambda tester: None,
        **kwargs,
    )
    return tester.test(splits, 1, nn.Identity(), splits_to_eval=splits_to_eval)


def raw(dataset):
    return dataset.tensors[0], dataset.tensors[1].tolist()


@pytest.mark.parametrize("retrieval", ["cosine", "l2"])
def test_every_split_in_itself(splits, retrieval):
    ours = run(ProbabilisticAccuracyCalculator(device="cpu", retrieval=retrieval, recall_at=(1, 10)), splits)
    pml = run(AccuracyCalculator(device=torch.device("cpu")), splits, normalize=retrieval == "cosine")
    for name, dataset in splits.items():
        x, y = raw(dataset)
        expected = naive.averages(naive.per_query(x, y, x, y, True, retrieval, recall_at=(1, 10)))
        for metric, value in expected.items():
            assert ours[name][f"{metric}_level0"] == pytest.approx(value, rel=1e-6), metric
        for metric, value in pml[name].items():
            assert ours[name][metric] == pytest.approx(value, rel=1e-6), metric


def test_other_and_joined_references(splits):
    calculator = ProbabilisticAccuracyCalculator(device="cpu", exclude=("NMI", "AMI"), batch_size=8)
    ours = run(calculator, splits, [("val", ["train"]), ("test", ["train", "test"])])
    val, train, test = raw(splits["val"]), raw(splits["train"]), raw(splits["test"])
    joined = torch.cat([test[0], train[0]]), test[1] + train[1]
    for name, expected in (
        ("val", naive.per_query(*val, *train, False)),
        ("test", naive.per_query(*test, *joined, True)),
    ):
        for metric, value in naive.averages(expected).items():
            assert ours[name][f"{metric}_level0"] == pytest.approx(value, rel=1e-6), metric


def test_label_hierarchies(splits):
    x, y = splits["test"].tensors
    two_levels = {"test": TensorDataset(x, torch.stack([y, y // 2], dim=1))}
    calculator = ProbabilisticAccuracyCalculator(device="cpu", include=("recall_at_2", "map_at_1000"))
    ours = run(calculator, two_levels, label_hierarchy_level="all")["test"]
    for metric in ("recall_at_2", "map_at_1000"):
        both = [ours[f"{metric}_level{level}"] for level in (0, 1)]
        assert both[0] < both[1]
        assert ours[f"AVERAGE_{metric}"] == pytest.approx(sum(both) / 2)
