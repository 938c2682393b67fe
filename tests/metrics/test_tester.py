"""The calculator in PML's tester, which keeps the norms with normalize_embeddings=False."""

import pytest
import torch
from pytorch_metric_learning.testers import GlobalEmbeddingSpaceTester
from torch import nn
from torch.utils.data import TensorDataset

from pml_nivmf.metrics import ProbabilisticAccuracyCalculator

from . import naive


@pytest.mark.parametrize("retrieval", ["cosine", "l2"])
def test_raw_norms_reach_the_calculator(retrieval):
    """A split in itself, another split and two joined splits as references."""
    calculator = ProbabilisticAccuracyCalculator(device="cpu", exclude=("NMI", "AMI"), retrieval=retrieval)
    tester = GlobalEmbeddingSpaceTester(
        normalize_embeddings=False,
        accuracy_calculator=calculator,
        dataloader_num_workers=0,
        data_device=torch.device("cpu"),
        end_of_testing_hook=lambda tester: None,
    )
    splits = {name: naive.data(count, lone=0) for name, count in (("train", 40), ("val", 30), ("test", 50))}
    searches = [("train", ["train"]), ("val", ["train"]), ("test", ["train", "test"])]
    datasets = {name: TensorDataset(*split) for name, split in splits.items()}
    ours = tester.test(datasets, 1, nn.Identity(), splits_to_eval=searches)
    train, val, test = ((x, y.tolist()) for x, y in splits.values())
    joined = torch.cat([test[0], train[0]]), test[1] + train[1]
    for name, expected in (
        ("train", naive.per_query(*train, *train, True, retrieval)),
        ("val", naive.per_query(*val, *train, False, retrieval)),
        ("test", naive.per_query(*test, *joined, True, retrieval)),
    ):
        for metric, value in naive.averages(expected).items():
            assert ours[name][f"{metric}_level0"] == pytest.approx(value, rel=1e-6), metric
