"""Every loss of ours as one of PML's: reducers, regularizers, miners, wrappers, trainers, testers, hooks."""

import pytest
import torch
from pytorch_metric_learning import miners, reducers, regularizers, testers, trainers
from pytorch_metric_learning.utils import logging_presets
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from pytorch_metric_learning.utils.inference import CustomKNN
from torch.utils.data import TensorDataset

from pml_nivmf.distances import ExpectedLikelihoodDistance

from ..distances.variants import each
from ..losses.variants import FEW, FEW_SINGLE, ONE_OF_EACH_CLASS
from .catalogue import classes_of
from .programs import CLASSES as C
from .programs import CPU, REDUCERS, REGULARIZERS, WRAPPERS, metrics_of, proxy_accuracy, toy_problem, train

M, B = 16, 12
TRAINERS, TESTERS = sorted(classes_of(trainers)), sorted(classes_of(testers))
REDUCERS_THAT_REFUSE = {"DivisorReducer": "needs a divisor"}
WRAPPERS_THAT_REFUSE = dict.fromkeys(["CrossBatchMemory", "SelfSupervisedLoss"], "needs `ref_emb`")


@pytest.fixture
def batch():
    torch.manual_seed(0)
    return torch.randn(B, M, requires_grad=True), torch.randint(0, C, (B,))


def same_start(loss, state, batch, **arguments):
    """The value of the loss with the state of another and the same noise."""
    loss.load_state_dict(state)
    torch.manual_seed(1)
    return loss(*batch, **arguments)


@pytest.fixture
def state(make, batch):
    """Of a loss that has seen a batch, so that its scale is set."""
    loss = make(C, M)
    loss(*batch)
    return loss.state_dict()


@each(FEW_SINGLE)
def test_reducers(make, batch, state):
    values = same_start(make(C, M, reducer=REDUCERS["DoNothingReducer"]()), state, batch)["loss"]["losses"]
    assert values.shape == (B,)
    expected = {
        "AvgNonZeroReducer": values[values > 0].mean(),
        "ClassWeightedReducer": (values * (batch[1] + 1)).mean(),
        "MeanReducer": values.mean(),
        "MultipleReducers": values.sum(),
        "PerAnchorReducer": values.mean(),
        "SumReducer": values.sum(),
        "ThresholdReducer": values[values > 0.5].mean(),
    }
    for name, value in expected.items():
        torch.testing.assert_close(same_start(make(C, M, reducer=REDUCERS[name]()), state, batch), value)
    torch.testing.assert_close(same_start(make(C, M), state, batch), values.mean())
    assert {*expected, "DoNothingReducer", *REDUCERS_THAT_REFUSE} == set(REDUCERS)
    with pytest.raises(KeyError, match="divisor"):  # for losses that bring one, as ProxyAnchorLoss does
        make(C, M, reducer=REDUCERS["DivisorReducer"]())(*batch)


@each(FEW_SINGLE)
def test_weight_regularizers(make, batch, state):
    plain = same_start(make(C, M), state, batch)
    for name, regularizer in REGULARIZERS.items():
        loss = make(C, M, weight_regularizer=regularizer(), weight_reg_weight=0.25)
        value = same_start(loss, state, batch)
        expected = plain + 0.25 * regularizer()(loss.proxies)
        torch.testing.assert_close(value, expected, msg=lambda message, name=name: f"{name}: {message}")
        value.backward()
        assert torch.isfinite(loss.proxies.grad).all()


@each(FEW)
def test_embedding_regularizer(make, batch, state):
    plain = same_start(make(C, M), state, batch)
    loss = make(C, M, embedding_regularizer=regularizers.LpRegularizer(), embedding_reg_weight=0.25)
    torch.testing.assert_close(same_start(loss, state, batch), plain + 0.25 * batch[0].norm(dim=1).mean())


@each(FEW_SINGLE)
def test_miner_tuples_are_weights_per_sample(make, batch, state):
    loss = make(C, M, reducer=reducers.DoNothingReducer())
    plain = same_start(loss, state, batch)["loss"]["losses"]
    anchors, others = torch.tensor([0, 0, 1]), torch.tensor([2, 2, 2])
    weighted = same_start(loss, state, batch, indices_tuple=(anchors, others, anchors))["loss"]["losses"]
    weights = torch.zeros(B)
    weights[[0, 1, 2]] = torch.tensor([4.0, 2.0, 3.0]) / 4  # how often each appears, over the largest count
    torch.testing.assert_close(weighted, plain * weights)


@each(FEW)
def test_real_miner_and_wrappers(make, batch):
    indices = miners.MultiSimilarityMiner()(*batch)
    loss = make(C, M)
    WRAPPERS["MultipleLosses"](loss)(*batch, indices_tuple=indices).backward()
    assert torch.isfinite(batch[0].grad).all()
    for name in WRAPPERS_THAT_REFUSE:
        with pytest.raises(Exception, match=f"{name} not supported for {type(loss).__name__}"):
            WRAPPERS[name](loss)
    with pytest.raises(ValueError, match="ref_emb is not supported"):
        loss(*batch, ref_emb=torch.randn(3, M), ref_labels=torch.zeros(3, dtype=torch.long))


@each(ONE_OF_EACH_CLASS)
@pytest.mark.parametrize("trainer", TRAINERS)
def test_trainers(trainer, make):
    """A PML program with ProxyAnchorLoss replaced by ours, nothing else changed."""
    trunk, losses = train(trainer, make)
    assert proxy_accuracy(trunk, losses) > 0.95
    if trainer == "MetricLossOnly":  # the testers, on raw embeddings, with a search by distributions
        for tester in TESTERS:
            metrics = metrics_of(tester, trunk, CustomKNN(ExpectedLikelihoodDistance()))
            scores = [value for name, value in metrics.items() if name.startswith("precision_at_1")]
            assert min(scores) > 0.9, tester


@each(ONE_OF_EACH_CLASS)
def test_hook_container(make, tmp_path):
    """PML's HookContainer logs our losses, saves them with the best epoch and restores them."""
    keeper, _, _ = logging_presets.get_record_keeper(str(tmp_path / "csv"), str(tmp_path / "tensorboard"))
    hooks = logging_presets.get_hook_container(keeper, primary_metric="precision_at_1")
    tester = testers.GlobalEmbeddingSpaceTester(
        normalize_embeddings=False,
        accuracy_calculator=AccuracyCalculator(include=("precision_at_1",), k=5),
        end_of_testing_hook=hooks.end_of_testing_hook,
        **CPU,
    )
    models, splits = tmp_path / "models", {"val": TensorDataset(*toy_problem())}
    test_and_save = hooks.end_of_epoch_hook(tester, splits, str(models))
    trainer_hooks = {"end_of_iteration_hook": hooks.end_of_iteration_hook, "end_of_epoch_hook": test_and_save}
    _, (trained,) = train("MetricLossOnly", make, epochs=2, **trainer_hooks)
    first, last = hooks.get_loss_history(["metric_loss"])["metric_loss"]
    assert last < first
    epoch, best = hooks.get_best_epoch_and_accuracy(tester, "val")
    assert best > 0.9
    restored = make(C, M)
    restored.load_state_dict(torch.load(models / "metric_loss_2.pth", weights_only=True))
    assert all(map(torch.equal, restored.state_dict().values(), trained.state_dict().values()))
    assert (models / f"metric_loss_best{epoch}.pth").exists()
