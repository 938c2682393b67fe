"""What every loss does as a PML loss: gradients, dtypes, precision, bad input, state, parameter groups, training."""

import copy
import pickle

import pytest
import torch
from pytorch_metric_learning import losses as pml_losses
from torch import nn
from torch.nn import functional as F

from pml_nivmf.losses import JointProxyLoss, NonIsotropicVMFLoss, VMFProxyLoss

from ..devices import DEVICES
from ..distances.variants import each
from .variants import ALL, JOINT, NORM_CARRYING, SINGLE, fixed_noise_sampler, sampled

C, M, B = 5, 16, 12


@pytest.fixture
def batch():
    torch.manual_seed(0)
    return torch.randn(B, M, requires_grad=True), torch.randint(0, C, (B,))


def snapshot(loss):
    return {name: value.clone() for name, value in loss.state_dict().items()}


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@each(ALL)
def test_every_parameter_gets_a_gradient(make, batch):
    loss = make(C, M)
    loss(*batch).backward()
    for name, parameter in loss.named_parameters():
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().sum() > 0, name
    assert torch.isfinite(batch[0].grad).all()
    logits = loss.get_logits(batch[0])
    assert logits.shape == (B, C)
    assert torch.isfinite(logits).all()


@each(ALL)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_any_dtype_is_computed_in_float32_or_more(make, batch, dtype, device):
    """As in PML's own tests, the loss is not moved by hand: it follows the embeddings."""
    loss, working = make(C, M), torch.promote_types(dtype, torch.float32)
    embeddings = batch[0].detach().to(device, dtype).requires_grad_()
    loss(embeddings, batch[1])  # sets the scale
    values = []
    for inputs in (embeddings, embeddings.detach().to(working)):
        torch.manual_seed(1)
        values.append(loss(inputs, batch[1]))
    torch.testing.assert_close(*values)
    values[0].backward()
    assert embeddings.grad.dtype == dtype
    assert loss.get_logits(embeddings).dtype == working
    assert {(p.dtype, p.device.type) for p in loss.parameters()} == {(torch.float32, device)}


@each(NORM_CARRYING | JOINT)
def test_gradients_at_zero_and_near_zero_are_bounded(make, batch):
    loss = make(C, M)
    loss(*batch)
    for size in (1e-3, 1e-6, 1e-12):
        embeddings = batch[0].detach().clone()
        embeddings[2] *= size
        embeddings[3] = 0
        embeddings.requires_grad_()
        loss(embeddings, batch[1]).backward()
        assert torch.isfinite(embeddings.grad).all()
        assert embeddings.grad[3].norm() < 100
        if make not in (NORM_CARRYING["KL-vMF paper"], *JOINT.values()):  # these grow like 1/‖z‖
            assert embeddings.grad[2].norm() < 100
    assert torch.isfinite(make(C, M)(torch.zeros(4, M), batch[1][:4]))


# State ----------------------------------------------------------------------------------------------------------


@each(ALL)
def test_state_dict_and_pickle_round_trips(make, batch):
    loss = make(C, M)
    loss(*batch).backward()
    torch.optim.SGD(loss.parameters(), lr=0.1).step()
    other = make(C, M)
    other.load_state_dict(loss.state_dict())
    for twin in (other, pickle.loads(pickle.dumps(loss))):
        assert same(loss.state_dict(), twin.state_dict())
        logits = []
        for each_loss in (loss, twin):
            torch.manual_seed(1)
            logits.append(each_loss.get_logits(batch[0]))
        assert torch.equal(*logits)


@each(JOINT)
def test_sharing_survives_copies_moves_and_loading(make, batch):
    loss = make(C, M)
    copied = copy.deepcopy(loss).double()
    assert copied.guidance.proxies is copied.probabilistic.proxies
    assert copied.proxies is not loss.proxies
    for assign in (False, True):
        copied.load_state_dict(loss.state_dict(), assign=assign)
        assert copied.guidance.proxies is copied.proxies
    loss(batch[0].half(), batch[1])
    assert loss.proxies.dtype == torch.float32


# Bad input ------------------------------------------------------------------------------------------------------


def _with(embeddings, row, value):
    changed = embeddings.detach().clone()
    changed[row, 3] = value
    return changed


SHAPE = rf"floating point tensor of shape \(batch, {M}\) with at least one row"
BAD_BATCHES = {
    "label too large": (lambda e, y: (e, y.clone().fill_(C)), f"label {C} is out of range for num_classes={C}"),
    "float labels": (lambda e, y: (e, y.float()), "labels must be integers"),
    "width": (lambda e, y: (e[:, :-1], y), SHAPE),
    "empty": (lambda e, y: (e[:0], y[:0]), SHAPE),
    "integer embeddings": (lambda e, y: (e.long(), y), SHAPE),
    "nan": (lambda e, y: (_with(e, 4, float("nan")), y), "hold NaN, .* first in row 4"),
    "inf": (lambda e, y: (_with(e, 7, float("inf")), y), "infinity .* first in row 7"),
    "huge": (lambda e, y: (_with(e, 2, 1e25), y), "too large to be squared, first in row 2"),
    "lengths": (lambda e, y: (e, y[:-1]), "Number of embeddings must equal number of labels"),
}


@each({name: ALL[name] for name in ("EL-nivMF", "EL-nivMF deviations", "EL-vMF", "nivMF", "Cos", "PANC + EL-nivMF")})
@pytest.mark.parametrize("case", BAD_BATCHES)
def test_bad_batches_are_named_and_change_nothing(make, case, batch):
    loss = make(C, M)
    before = snapshot(loss)
    spoil, message = BAD_BATCHES[case]
    for call in (loss, loss.warm_start):
        with pytest.raises(ValueError, match=message):
            call(*spoil(*batch))
    assert same(before, loss.state_dict())
    assert torch.isfinite(loss(*batch))


def test_norms_that_overflow_once_scaled_are_named(batch):
    loss = NonIsotropicVMFLoss(C, M, embedding_scale=100.0)
    assert torch.isfinite(loss(_with(batch[0], 2, 1e16), batch[1]))
    with pytest.raises(ValueError, match="too large to be squared, first in row 2"):
        loss(_with(batch[0], 2, 1e18), batch[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_classes": 0}, "num_classes must be an integer of at least 1, got 0"),
        ({"embedding_size": 1}, "embedding_size must be an integer of at least 2, got 1"),
        ({"temperature": 0.0}, "temperature must be a positive number, got 0.0"),
        ({"initial_concentration": 0.0}, "initial_concentration must be a positive number"),
        ({"initial_norm_per_dim": 0}, "initial_norm_per_dim must be a positive number"),
        ({"embedding_scale": "big"}, "embedding_scale .*got 'big'"),
        ({"parametrization": "exp"}, "parametrization must be .* got 'exp'"),
        ({"temperature_position": "between"}, "temperature_position must be one of inside, outside, got 'between'"),
        ({"concentration": "global"}, "concentration must be one of per_class, .* got 'global'"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        NonIsotropicVMFLoss(**{"num_classes": C, "embedding_size": M, **options})


def test_joint_refuses_what_it_cannot_share_or_gather(batch):
    ours = NonIsotropicVMFLoss(C, M)
    with pytest.raises(ValueError, match=r"guidance needs `proxies` of shape \(5, 16\), .* got .*\[6, 16\]"):
        JointProxyLoss(ours, pml_losses.ProxyAnchorLoss(C + 1, M))
    with pytest.raises(TypeError, match="got ProxyAnchorLoss"):
        JointProxyLoss(pml_losses.ProxyAnchorLoss(C, M), pml_losses.ProxyAnchorLoss(C, M))
    with pytest.raises(ValueError, match="weight must be at least 0, got -1"):
        JointProxyLoss(ours, pml_losses.ProxyAnchorLoss(C, M), weight=-1)
    joint = JointProxyLoss(ours, pml_losses.ProxyAnchorLoss(C, M), gather_guidance=True)
    with pytest.raises(ValueError, match="gather_guidance takes no indices_tuple: use GatheredLoss"):
        joint(*batch, (torch.tensor([0]), torch.tensor([1]), torch.tensor([2])))


# Parameters -----------------------------------------------------------------------------------------------------


@each(ALL)
def test_param_groups_hold_every_parameter_once(make):
    loss = make(C, M)
    groups = loss.param_groups(1e-3, proxy_lr=0.5, concentration_lr=0.25, temperature_lr=0.125)
    parameters = [parameter for group in groups for parameter in group["params"]]
    assert sorted(map(id, parameters)) == sorted(map(id, loss.parameters()))
    rates = {group["name"].split("_")[-1]: group["lr"] for group in groups}
    expected = {"proxies": 0.5, "concentration": 0.25, "temperature": 0.125, "deviation": 0.25}
    assert rates == {name: expected[name] for name in rates}
    assert {"proxies", "temperature"} <= set(rates)
    torch.optim.AdamW(groups, weight_decay=0.1)
    assert {group["weight_decay"] for group in groups} == {0}, "only the network decays"
    decays = {group["name"]: group["weight_decay"] for group in loss.param_groups(1e-3, weight_decay=0.1)}
    assert {name for name, decay in decays.items() if decay} == {"proxies"}


def test_param_groups_of_a_joint_loss_hold_the_guidance_losses_own_parameters():
    joint = JointProxyLoss(NonIsotropicVMFLoss(C, M), pml_losses.ProxyAnchorLoss(C, M))
    joint.guidance.own = nn.Parameter(torch.ones(()))
    groups = {group["name"]: group for group in joint.param_groups(0.7)}
    assert groups["guidance"]["lr"] == 0.7
    assert groups["guidance"]["params"] == [joint.guidance.own]


def test_fixed_temperature_gets_no_gradient(batch):
    loss = NonIsotropicVMFLoss(C, M, temperature=0.2, learnable_temperature=False)
    loss(*batch).backward()
    assert loss.log_temperature.grad is None
    assert loss.state_dict()["log_temperature"].exp().item() == pytest.approx(0.2)


# Training -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [16, 512])
@each(
    {
        "EL-nivMF": NonIsotropicVMFLoss,
        "EL-nivMF sampled": lambda c, m: NonIsotropicVMFLoss(c, m, distance=sampled(5)),
        "EL-vMF": VMFProxyLoss,
    }
)
def test_defaults_train_out_of_the_box(make, dim):
    """A fresh Linear head, no warm start, an ordinary optimizer: the proxies classify what they were trained on."""
    torch.manual_seed(0)
    labels = torch.arange(10).repeat(40)
    features = torch.randn(10, 32)[labels] + 0.6 * torch.randn(len(labels), 32)
    head, loss = nn.Linear(32, dim), make(10, dim)
    optimizer = torch.optim.Adam([{"params": head.parameters(), "lr": 1e-3}, *loss.param_groups(1e-3)])
    for _ in range(60):
        picked = torch.randint(0, len(labels), (64,))
        optimizer.zero_grad()
        loss(head(features[picked]), labels[picked]).backward()
        optimizer.step()
    accuracy = (loss.eval().get_logits(head(features)).argmax(1) == labels).float().mean()
    assert accuracy > 0.95


# Precision ------------------------------------------------------------------------------------------------------


def value_logits_and_gradients(loss, embeddings, labels):
    embeddings = embeddings.detach().requires_grad_()
    value = loss(embeddings, labels)
    gradients = torch.autograd.grad(value, [embeddings, *loss.parameters()])
    return value.double(), loss.get_logits(embeddings).double().log_softmax(1), [g.double() for g in gradients]


@pytest.mark.parametrize("make", SINGLE.values(), ids=SINGLE.keys())
@pytest.mark.parametrize("dim", [8, 512])
def test_float32_is_within_1e_4_of_float64(make, dim, monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr("pml_nivmf.distances.nivmf.sample_vmf", fixed_noise_sampler(2 * dim**0.5 * torch.randn(5, dim)))
    embeddings, labels = torch.randn(B, dim), torch.randint(0, C, (B,))
    embeddings = F.normalize(embeddings, dim=1) * dim**0.5 * torch.linspace(0.2, 3, B)[:, None]
    single = make(C, dim)
    with torch.no_grad():
        for name, parameter in single.named_parameters():
            if name.startswith("log_"):
                parameter.add_(0.1 * torch.randn_like(parameter))
    single(embeddings, labels)  # sets the scale
    double = make(C, dim).double()
    double.load_state_dict(single.state_dict())
    value, logits, gradients = value_logits_and_gradients(single, embeddings, labels)
    exact_value, exact_logits, exact_gradients = value_logits_and_gradients(double, embeddings.double(), labels)
    assert abs(value - exact_value) < 1e-4 * max(1, abs(exact_value))
    assert (logits - exact_logits).abs().max() < 1e-4 * exact_logits.abs().max().clamp(min=1)
    for gradient, exact in zip(gradients, exact_gradients, strict=True):
        assert (gradient - exact).norm() < 1e-4 * exact.norm() + 1e-7


def test_float16_norms_larger_than_float16_are_fine():
    """‖z‖² of ordinary float16 embeddings overflows float16; nothing here computes it there."""
    embeddings = torch.full((B, 16), 6e4).half().requires_grad_()
    joint = JointProxyLoss(NonIsotropicVMFLoss(C, 16), pml_losses.ProxyAnchorLoss(C, 16))
    value = joint(embeddings, torch.arange(B) % C)
    value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(embeddings.grad).all()
