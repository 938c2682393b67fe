"""Every loss of ours as one of PML's: reducers, regularizers, miners, wrappers, trainers, testers, dtypes, devices."""

import pytest
import torch
from pytorch_metric_learning import losses as pml_losses
from pytorch_metric_learning import miners, reducers, regularizers, testers, trainers
from pytorch_metric_learning.utils.inference import CustomKNN

from pml_nivmf.distances import ExpectedLikelihoodDistance
from pml_nivmf.losses import JointProxyLoss, NonIsotropicVMFLoss

from ..devices import DEVICES
from ..losses.variants import ALL, SINGLE
from .programs import CLASSES as C
from .programs import REDUCERS, REGULARIZERS, WRAPPERS, metrics_of, proxy_accuracy, single, train

M, B = 16, 12
DTYPES = [torch.float16, torch.float32, torch.float64]

REDUCERS_THAT_REFUSE = {"DivisorReducer": "needs a divisor"}
WRAPPERS_THAT_REFUSE = dict.fromkeys(["CrossBatchMemory", "SelfSupervisedLoss"], "needs `ref_emb`")


@pytest.fixture
def batch():
    torch.manual_seed(0)
    return torch.randn(B, M, requires_grad=True), torch.randint(0, C, (B,))


def each(variants):
    return pytest.mark.parametrize("make", variants.values(), ids=variants.keys())


def names_in(module, but=()):
    return sorted(name for name, value in vars(module).items() if isinstance(value, type) and name not in but)


def same_start(loss, state, batch):
    """The loss's value with another's state and noise."""
    loss.load_state_dict(state)
    torch.manual_seed(1)
    return loss(*batch)


# Reducers and regularizers --------------------------------------------------------------------------------------


def test_all_reducers_and_regularizers_of_pml_are_here():
    assert sorted(REDUCERS) == names_in(reducers, but=("BaseReducer",))
    assert sorted(REGULARIZERS) == names_in(regularizers, but=("BaseRegularizer",))


@each(SINGLE)
def test_reducers(make, batch):
    elements = make(C, M, reducer=REDUCERS["DoNothingReducer"]())
    elements(*batch)  # sets the scale
    state = elements.state_dict()
    values = same_start(elements, state, batch)["loss"]["losses"]
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


@each(SINGLE)
def test_regularizers_add_to_the_loss(make, batch):
    plain = make(C, M)
    plain(*batch)
    state = plain.state_dict()
    bare = same_start(plain, state, batch)
    for name, regularizer in REGULARIZERS.items():
        loss = make(C, M, weight_regularizer=regularizer(), weight_reg_weight=0.25)
        value = same_start(loss, state, batch)
        torch.testing.assert_close(value, bare + 0.25 * regularizer()(plain.proxies), msg=lambda m, n=name: f"{n} {m}")
        value.backward()
        assert torch.isfinite(loss.proxies.grad).all()
        assert torch.isfinite(loss(batch[0].half(), batch[1]))
    loss = make(C, M, embedding_regularizer=regularizers.LpRegularizer(), embedding_reg_weight=0.25)
    torch.testing.assert_close(same_start(loss, state, batch), bare + 0.25 * batch[0].norm(dim=1).mean())


def test_joint_embedding_regularizer(batch):
    def joint(**options):
        torch.manual_seed(2)
        probabilistic = NonIsotropicVMFLoss(C, M, estimator="analytic")
        return JointProxyLoss(probabilistic, pml_losses.ProxyAnchorLoss(C, M), **options)

    plain, regularised = joint(), joint(embedding_regularizer=regularizers.LpRegularizer())
    torch.testing.assert_close(regularised(*batch), plain(*batch) + batch[0].norm(dim=1).mean())


# Miners, wrappers, references -----------------------------------------------------------------------------------


@each(SINGLE)
def test_miner_tuples_are_weights_per_sample(make, batch):
    loss = make(C, M, reducer=reducers.DoNothingReducer())
    loss(*batch)
    anchors, others = torch.tensor([0, 0, 1]), torch.tensor([2, 2, 2])
    torch.manual_seed(1)
    weighted = loss(*batch, indices_tuple=(anchors, others, anchors))["loss"]["losses"]
    torch.manual_seed(1)
    plain = loss(*batch)["loss"]["losses"]
    weights = torch.zeros(B)
    weights[[0, 1, 2]] = torch.tensor([4.0, 2.0, 3.0]) / 4  # how often each appears, over the largest count
    torch.testing.assert_close(weighted, plain * weights)


@each(ALL)
def test_real_miner_and_wrappers(make, batch):
    indices = miners.MultiSimilarityMiner()(*batch)
    loss = make(C, M)
    assert torch.isfinite(loss(*batch, indices_tuple=indices))
    WRAPPERS["MultipleLosses"](loss)(*batch, indices_tuple=indices).backward()
    assert torch.isfinite(batch[0].grad).all()
    for name in WRAPPERS_THAT_REFUSE:
        with pytest.raises(Exception, match=f"{name} not supported for {type(loss).__name__}"):
            WRAPPERS[name](loss)


@each(ALL)
def test_references_are_refused_and_labels_required(make, batch):
    loss = make(C, M)
    with pytest.raises(ValueError, match="ref_emb is not supported"):
        loss(*batch, ref_emb=torch.randn(3, M), ref_labels=torch.zeros(3, dtype=torch.long))
    with pytest.raises(ValueError, match="labels are required"):
        loss(batch[0])


@each(ALL)
def test_stats_are_collected(make, batch):
    loss = make(C, M, collect_stats=True)
    loss(*batch)
    assert single(loss).avg_query_norm > 0
    assert single(loss).current_temperature == pytest.approx(single(loss).temperature.item())


@each(ALL)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_and_devices(make, dtype, device, batch):
    """As PML's own tests do, the loss is not moved by hand: it follows the embeddings."""
    embeddings = batch[0].detach().to(device, dtype).requires_grad_()
    loss = make(C, M)
    value = loss(embeddings, batch[1])
    value.backward()
    assert value.dtype == torch.promote_types(dtype, torch.float32)
    assert value.device.type == device
    assert embeddings.grad.dtype == dtype
    assert torch.isfinite(embeddings.grad).all()


# Trainers and testers -------------------------------------------------------------------------------------------

TRAINERS = names_in(trainers, but=("BaseTrainer",))
TESTERS = names_in(testers, but=("BaseTester",))


@each(ALL)
@pytest.mark.parametrize("trainer", TRAINERS)
def test_trainers(trainer, make):
    """A PML program with ProxyAnchorLoss replaced by ours, nothing else changed."""
    assert proxy_accuracy(*train(trainer, make)) > 0.95


@each(ALL)
def test_testers(make):
    """On raw embeddings of a trunk that the loss has trained, with a search by distributions."""
    trunk, _ = train("MetricLossOnly", make)
    for tester in TESTERS:
        metrics = metrics_of(tester, trunk, CustomKNN(ExpectedLikelihoodDistance()))
        scores = [value for name, value in metrics.items() if name.startswith("precision_at_1")]
        assert scores, metrics
        assert min(scores) > 0.9, tester
