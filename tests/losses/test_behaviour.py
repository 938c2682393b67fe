"""What every loss does as a citizen of PML: gradients, dtypes, reducers, miners, scale, warm start, bad input."""

import copy
import pickle
import warnings

import numpy as np
import pytest
import torch
from pytorch_metric_learning import losses as pml_losses
from pytorch_metric_learning.losses import BaseMetricLossFunction
from torch import nn
from torch.nn import functional as F

from pml_nivmf.losses import (
    JointProxyLoss,
    NonIsotropicVMFLoss,
    VMFProxyLoss,
    calibrate_head,
    move_scale_to_head,
    warm_start_from_loader,
)
from pml_nivmf.models import EmbeddingHead

from .variants import ALL, JOINT, NORM_CARRYING, SINGLE

C, M, B = 5, 16, 12


@pytest.fixture
def batch():
    torch.manual_seed(0)
    return torch.randn(B, M, requires_grad=True), torch.randint(0, C, (B,))


def each(variants):
    return pytest.mark.parametrize("make", variants.values(), ids=variants.keys())


def snapshot(loss):
    return {name: value.clone() for name, value in loss.state_dict().items()}


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@each(ALL)
def test_every_parameter_gets_a_gradient(make, batch):
    loss = make(C, M)
    assert isinstance(loss, BaseMetricLossFunction)
    loss(*batch).backward()
    for name, parameter in loss.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().sum() > 0, name
    assert torch.isfinite(batch[0].grad).all()


@each(ALL)
def test_logits(make, batch):
    loss = make(C, M)
    loss(*batch)
    logits = loss.get_logits(batch[0])
    assert logits.shape == (B, C)
    assert torch.isfinite(logits).all()


@each(ALL)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("autocast", [True, False])
def test_half_precision(make, batch, dtype, autocast):
    loss = make(C, M)
    embeddings = batch[0].detach().to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        value = loss(embeddings, batch[1])
    value.backward()
    assert value.dtype == torch.float32
    assert torch.isfinite(value)
    assert embeddings.grad.dtype == dtype
    assert {parameter.dtype for parameter in loss.parameters()} == {torch.float32}
    assert loss.get_logits(embeddings).dtype == torch.float32


@each(ALL)
def test_half_precision_value_is_that_of_the_rounded_embeddings(make, batch):
    loss = make(C, M)
    half = batch[0].detach().half()
    torch.manual_seed(1)
    value = loss(half, batch[1])
    torch.manual_seed(1)
    torch.testing.assert_close(value, loss(half.float(), batch[1]))


@each(ALL)
def test_float64_embeddings_leave_parameters_alone(make, batch):
    loss = make(C, M)
    value = loss(batch[0].double(), batch[1])
    assert value.dtype == torch.float64
    assert {parameter.dtype for parameter in loss.parameters()} == {torch.float32}


@each(ALL)
def test_batch_of_one_and_one_class(make):
    one = make(1, M)(torch.randn(1, M), torch.tensor([0]))
    if not isinstance(make(1, M), JointProxyLoss):
        assert one.item() == pytest.approx(0, abs=1e-5)
    assert torch.isfinite(one)
    assert torch.isfinite(make(C, M)(torch.randn(1, M), torch.tensor([C - 1])))


@each(NORM_CARRYING | JOINT)
def test_zero_vector_is_legal_with_a_bounded_gradient(make, batch):
    loss = make(C, M)
    loss(*batch)
    embeddings = batch[0].detach().clone()
    embeddings[3] = 0
    embeddings.requires_grad_()
    value = loss(embeddings, batch[1])
    value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(embeddings.grad).all()
    assert embeddings.grad[3].norm() < 100
    assert torch.isfinite(make(C, M)(torch.zeros(4, M), batch[1][:4]))


@each(NORM_CARRYING)
def test_gradient_near_zero_stays_bounded(make, batch):
    """The bound is not a trick at exactly zero: it holds on the way there."""
    if make is NORM_CARRYING["KL-vMF paper"]:
        pytest.skip("the printed formula divides by the norm: its gradient grows like 1/‖z‖")
    loss = make(C, M)
    loss(*batch)
    for size in (1e-3, 1e-6, 1e-12):
        embeddings = (size * batch[0].detach()).requires_grad_()
        loss(embeddings, batch[1]).backward()
        assert embeddings.grad.norm(dim=1).max() < 100


@each(ALL)
def test_state_dict_round_trip(make, batch):
    loss = make(C, M)
    loss(*batch).backward()
    torch.optim.SGD(loss.parameters(), lr=0.1).step()
    other = make(C, M)
    other.load_state_dict(loss.state_dict())
    assert same(loss.state_dict(), other.state_dict())
    torch.manual_seed(1)
    logits = loss.get_logits(batch[0])
    torch.manual_seed(1)
    assert torch.equal(logits, other.get_logits(batch[0]))


# Bad input ------------------------------------------------------------------------------------------------------


def _with(embeddings, row, value):
    changed = embeddings.detach().clone()
    changed[row, 3] = value
    return changed


BAD_BATCHES = {
    "label too large": (lambda e, y: (e, y.clone().fill_(C)), f"label {C} is out of range for num_classes={C}"),
    "negative label": (lambda e, y: (e, y.clone().fill_(-1)), "label -1 is out of range"),
    "float labels": (lambda e, y: (e, y.float()), "labels must be integers"),
    "width": (lambda e, y: (e[:, :-1], y), f"width {M - 1}, this loss was built for {M}"),
    "rank": (lambda e, y: (e[:, :, None], y), r"2D tensor .* got shape \(12, 16, 1\)"),
    "empty": (lambda e, y: (e[:0], y[:0]), "empty"),
    "integer embeddings": (lambda e, y: (e.long(), y), "floating point, got torch.int64"),
    "nan": (lambda e, y: (_with(e, 4, float("nan")), y), "NaN, first in row 4"),
    "inf": (lambda e, y: (_with(e, 7, float("inf")), y), "infinity, first in row 7"),
    "huge": (lambda e, y: (_with(e, 2, 1e25), y), "norm of row 2 is too large"),
    "lengths": (lambda e, y: (e, y[:-1]), "Number of embeddings must equal number of labels"),
}


@each(ALL)
@pytest.mark.parametrize("case", BAD_BATCHES)
def test_bad_batches_are_named_and_change_nothing(make, case, batch):
    loss = make(C, M)
    before = snapshot(loss)
    spoil, message = BAD_BATCHES[case]
    with pytest.raises(ValueError, match=message):
        loss(*spoil(*batch))
    assert same(before, loss.state_dict())
    assert torch.isfinite(loss(*batch))


def test_norms_that_overflow_once_scaled_are_named(batch):
    loss = NonIsotropicVMFLoss(C, M, embedding_scale=100.0)
    assert torch.isfinite(loss(_with(batch[0], 2, 1e16), batch[1]))
    with pytest.raises(ValueError, match="norm of row 2 is too large"):
        loss(_with(batch[0], 2, 1e18), batch[1])


@each(ALL)
def test_bad_warm_start_changes_nothing(make, batch):
    loss = make(C, M)
    before = snapshot(loss)
    bad = ((batch[0], batch[1] + C), (batch[0][:, :3], batch[1]), (batch[0], batch[1][:2]), (batch[0], None))
    for embeddings, labels in bad:
        with pytest.raises(ValueError, match=r"out of range|width|equal|labels are required"):
            loss.warm_start(embeddings, labels)
    assert same(before, loss.state_dict())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_classes": 0}, "num_classes must be an integer of at least 1, got 0"),
        ({"num_classes": 2.5}, "num_classes"),
        ({"embedding_size": 1}, "embedding_size must be an integer of at least 2, got 1"),
        ({"n_samples": 0}, "n_samples must be an integer of at least 1, got 0"),
        ({"temperature": 0.0}, "temperature must be a positive number, got 0.0"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"initial_concentration": 0.0}, "initial_concentration must be a positive number, got 0.0"),
        ({"initial_concentration": -2}, "initial_concentration"),
        ({"embedding_scale": "big"}, "embedding_scale .*got 'big'"),
        ({"embedding_scale": 0.0}, "embedding_scale"),
        ({"chunk_size": 0}, "chunk_size must be an integer of at least 1, got 0"),
        ({"normalizer": "none"}, "normalizer"),
        ({"estimator": "guess"}, "estimator"),
        ({"temperature_position": "between"}, "temperature_position must be one of inside, outside, got 'between'"),
        (
            {"concentration": "global"},
            "concentration must be one of per_class, shared, shared_plus_deviation, got 'global'",
        ),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        NonIsotropicVMFLoss(**{"num_classes": C, "embedding_size": M, **options})


def test_concentration_where_the_distance_normalises_is_refused():
    from pytorch_metric_learning.distances import CosineSimilarity

    with pytest.raises(ValueError, match="CosineSimilarity normalises"):
        VMFProxyLoss(C, M, distance=CosineSimilarity(), initial_concentration=3.0)


def test_joint_refuses_what_it_cannot_share():
    ours = NonIsotropicVMFLoss(C, M)
    before = ours.proxies
    with pytest.raises(ValueError, match=r"guidance has shape \(6, 16\), the probabilistic loss \(5, 16\)"):
        JointProxyLoss(ours, pml_losses.ProxyAnchorLoss(C + 1, M))
    with pytest.raises(TypeError, match="ArcFaceLoss has none"):
        JointProxyLoss(ours, pml_losses.ArcFaceLoss(C, M))
    with pytest.raises(TypeError, match="got ProxyAnchorLoss"):
        JointProxyLoss(pml_losses.ProxyAnchorLoss(C, M), pml_losses.ProxyAnchorLoss(C, M))
    for weight in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=f"weight must be a number of at least 0, got {weight}"):
            JointProxyLoss(ours, pml_losses.ProxyAnchorLoss(C, M), weight=weight)
    assert ours.proxies is before


def test_numpy_numbers_are_numbers(batch):
    loss = NonIsotropicVMFLoss(np.int64(C), np.int32(M), n_samples=np.int64(2), temperature=np.float32(0.5))
    assert torch.isfinite(loss(*batch))


def test_zero_proxies_are_refused():
    with pytest.raises(ValueError, match="weight_init_func left a proxy at zero"):
        NonIsotropicVMFLoss(C, M, weight_init_func=torch.nn.init.zeros_)


def of_length(length):
    return lambda proxies: proxies.copy_(torch.nn.functional.normalize(torch.randn_like(proxies), dim=1) * length)


@each(SINGLE)
@pytest.mark.parametrize("length", [2e-6, 5e14])
def test_lengths_of_proxies_do_not_matter(make, length, batch):
    loss = make(C, M, weight_init_func=of_length(length))
    value = loss(*batch)
    value.backward()
    assert torch.isfinite(value)
    assert all(torch.isfinite(parameter.grad).all() for parameter in loss.parameters())


@pytest.mark.parametrize("length", [1e-7, 1e16, float("nan")])
def test_proxies_too_short_or_too_long_are_refused(length):
    with pytest.raises(ValueError, match=r"weight_init_func made proxies of lengths .* between 1e-06 and 1e.15"):
        NonIsotropicVMFLoss(C, M, weight_init_func=of_length(length))


@each(ALL)
def test_the_batch_as_its_own_reference_is_no_reference(make, batch):
    embeddings, labels = batch[0].detach().half(), batch[1]
    assert torch.isfinite(make(C, M)(embeddings, labels, ref_emb=embeddings, ref_labels=labels))


@each(ALL)
def test_pickling(make, batch):
    loss = make(C, M)
    loss(*batch)
    copied = pickle.loads(pickle.dumps(loss))
    assert same(loss.state_dict(), copied.state_dict())


@each(JOINT)
def test_sharing_survives_copies_moves_and_loading(make, batch):
    loss = make(C, M)
    copied = copy.deepcopy(loss).double()
    assert copied.guidance.proxies is copied.probabilistic.proxies
    assert copied.proxies is not loss.proxies
    copied.load_state_dict(loss.state_dict())
    assert copied.guidance.proxies is copied.proxies
    copied.load_state_dict(loss.state_dict(), assign=True)
    assert copied.guidance.proxies is copied.proxies
    assert len([p for p in copied.parameters() if p.shape == (C, M) and p is copied.proxies]) == 1
    loss(batch[0].half(), batch[1])
    assert loss.proxies.dtype == torch.float32


# Embedding scale ------------------------------------------------------------------------------------------------


def test_scale_is_set_by_the_first_training_batch_and_kept(batch):
    loss = NonIsotropicVMFLoss(C, 512)
    embeddings = nn.Linear(64, 512)(torch.randn(32, 64))
    assert embeddings.norm(dim=1).mean() < 30
    loss(embeddings, torch.randint(0, C, (32,)))
    scaled = loss.embedding_scale * embeddings.norm(dim=1).mean()
    assert scaled.item() == pytest.approx(4 * 512, rel=1e-4)
    before = loss.embedding_scale.clone()
    loss(100 * embeddings, torch.randint(0, C, (32,)))
    assert torch.equal(loss.embedding_scale, before)
    assert "embedding_scale" in loss.state_dict()
    other = NonIsotropicVMFLoss(C, 512)
    other.load_state_dict(loss.state_dict())
    other(100 * embeddings, torch.randint(0, C, (32,)))
    assert torch.equal(other.embedding_scale, before), "a loaded scale must not be calibrated again"


def test_evaluation_does_not_set_the_scale(batch):
    loss = NonIsotropicVMFLoss(C, M).eval()
    before = snapshot(loss)
    loss.get_logits(batch[0])
    loss(*batch)
    assert same(before, loss.state_dict())
    loss.train()
    loss(*batch)
    assert bool(loss.embedding_scale_is_set)


@pytest.mark.parametrize("size", [0.0, 1e-30])
def test_a_batch_of_zeros_does_not_set_the_scale(size, batch):
    loss = NonIsotropicVMFLoss(C, M)
    assert torch.isfinite(loss(torch.full((B, M), size), batch[1]))
    assert not bool(loss.embedding_scale_is_set)


def test_state_dicts_cross_between_automatic_and_fixed_scale(batch):
    fresh, fixed = NonIsotropicVMFLoss(C, M), NonIsotropicVMFLoss(C, M, embedding_scale=3.0)
    fixed.load_state_dict(fresh.state_dict())
    fixed(*batch)
    assert fixed.embedding_scale.item() == 3
    assert fixed.embedding_scale_is_set
    torch.testing.assert_close(fixed._scaled(batch[0]), 3 * batch[0])
    fresh.load_state_dict(fixed.state_dict())
    fresh(*batch)
    assert fresh.embedding_scale.item() == 3, "a scale that was set is taken over"


def _calibrate_on_rank(rank, port, queue):
    import os

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(rank)
    loss = NonIsotropicVMFLoss(C, M)
    embeddings = (1 + 4 * rank) * torch.randn(B, M)
    loss(embeddings, torch.zeros(B, dtype=torch.long))
    queue.put((loss.embedding_scale.item(), embeddings.norm(dim=1).mean().item()))
    torch.distributed.destroy_process_group()


def test_all_ranks_share_one_scale():
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = torch.multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    torch.multiprocessing.spawn(_calibrate_on_rank, args=(port, queue), nprocs=2)
    (first, norm_a), (second, norm_b) = queue.get(), queue.get()
    assert first == second
    assert first * (norm_a + norm_b) / 2 == pytest.approx(4 * M, rel=1e-5)


@pytest.mark.parametrize("scale", [1.0, 7])
def test_a_number_fixes_the_scale(scale, batch):
    loss = NonIsotropicVMFLoss(C, M, embedding_scale=scale)
    loss(*batch)
    loss.warm_start(*batch)
    assert loss.embedding_scale.item() == scale


def test_scale_where_norms_do_not_matter(batch):
    from pytorch_metric_learning.distances import CosineSimilarity

    loss = VMFProxyLoss(C, M, distance=CosineSimilarity())
    loss(*batch)
    assert loss.embedding_scale.item() == 1


def test_normalised_embeddings_are_warned_about_once(batch):
    loss = NonIsotropicVMFLoss(C, M)
    unit = F.normalize(batch[0], dim=1)
    with pytest.warns(UserWarning, match="all embeddings have length one"):
        loss(unit, batch[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss(unit, batch[1])
        NonIsotropicVMFLoss(C, M)(*batch)


def test_head_calibration():
    head, features = nn.Linear(20, 64), torch.randn(100, 20)
    directions = F.normalize(head(features), dim=1)
    factor = calibrate_head(head, features)
    assert head(features).norm(dim=1).mean().item() == pytest.approx(4 * 64, rel=1e-4)
    torch.testing.assert_close(F.normalize(head(features), dim=1), directions)
    assert factor > 1
    calibrate_head(head, features, target_norm=3.0)
    assert head(features).norm(dim=1).mean().item() == pytest.approx(3, rel=1e-4)
    with pytest.raises(ValueError, match="target_norm must be positive, got 0"):
        calibrate_head(head, features, target_norm=0)
    with pytest.raises(ValueError, match=r"mean norm 0\.0"):
        calibrate_head(nn.Linear(20, 8, bias=False), torch.zeros(3, 20))


# Warm start and parameter groups --------------------------------------------------------------------------------


@each(ALL)
def test_warm_start_points_proxies_at_class_means(make):
    torch.manual_seed(0)
    embeddings, labels = torch.randn(40, M), torch.arange(40) % C
    loss = make(C, M)
    lengths = loss.proxies.norm(dim=1)
    loss.warm_start(embeddings, labels)
    means = torch.stack([embeddings[labels == c].mean(0) for c in range(C)])
    torch.testing.assert_close(F.normalize(loss.proxies, dim=1), F.normalize(means, dim=1))
    torch.testing.assert_close(loss.proxies.norm(dim=1), lengths)


def test_warm_start_sets_the_scale_and_warns_about_missing_classes():
    torch.manual_seed(0)
    embeddings, labels = torch.randn(40, M), torch.arange(40) % 3
    loss = NonIsotropicVMFLoss(C, M)
    before = loss.proxies.detach().clone()
    with pytest.warns(UserWarning, match="2 classes have no sample or no mean and keep their proxies: 3, 4"):
        loss.warm_start(embeddings, labels)
    assert torch.equal(loss.proxies[3:], before[3:])
    assert not torch.equal(loss.proxies[:3], before[:3])
    assert (loss.embedding_scale * embeddings.norm(dim=1).mean()).item() == pytest.approx(4 * M, rel=1e-5)
    assert loss.proxies.requires_grad


@pytest.mark.parametrize("make", [NonIsotropicVMFLoss, VMFProxyLoss])
def test_starting_norm_is_an_option(make):
    """The softmax starts at the same sharpness whatever the norms are."""
    torch.manual_seed(0)
    embeddings, labels = torch.randn(40, M), torch.arange(40) % C
    spreads = []
    for per_dim in (2.0, 4.0, 32.0):
        loss = make(C, M, initial_norm_per_dim=per_dim)
        loss.warm_start(embeddings, labels)
        norm = (loss.embedding_scale * embeddings.norm(dim=1).mean()).item()
        assert norm == pytest.approx(per_dim * M, rel=1e-5)
        spreads.append(loss.get_logits(embeddings).std(dim=1).mean().item())
    assert max(spreads) < 1.5 * min(spreads)
    with pytest.raises(ValueError, match="initial_norm_per_dim must be a positive number, got 0"):
        make(C, M, initial_norm_per_dim=0)


def test_warm_start_from_a_model_and_a_loader():
    torch.manual_seed(0)
    images, labels = torch.randn(50, 8), torch.arange(50) % C
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Dropout(0.5), nn.Linear(32, M))
    model[1].eval()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels), batch_size=7)
    by_hand, by_loader = NonIsotropicVMFLoss(C, M), NonIsotropicVMFLoss(C, M)
    by_loader.load_state_dict(by_hand.state_dict())
    warm_start_from_loader(by_loader, model, loader)
    assert model.training
    assert model[3].training
    assert not model[1].training, "modes are restored module by module"
    model.eval()
    by_hand.warm_start(model(images).detach(), labels)
    torch.testing.assert_close(by_hand.state_dict(), by_loader.state_dict())
    with pytest.raises(ValueError, match="no batch"):
        warm_start_from_loader(by_loader, model, [])


def test_warm_start_of_pml_losses():
    torch.manual_seed(0)
    images, labels = torch.randn(50, 8), torch.arange(50) % C
    head = nn.Linear(8, M)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels), batch_size=7)
    loss = pml_losses.ProxyAnchorLoss(C, M)
    lengths = loss.proxies.norm(dim=1).detach()
    warm_start_from_loader(loss, head, loader)
    means = torch.stack([head(images[labels == c]).mean(0) for c in range(C)])
    torch.testing.assert_close(loss.proxies, F.normalize(means) * lengths.unsqueeze(1))
    with pytest.raises(ValueError, match="TripletMarginLoss has no class proxies"):
        warm_start_from_loader(pml_losses.TripletMarginLoss(), head, loader)


def test_warm_start_sees_the_embeddings_that_training_will_see():
    """A fresh batch norm's own statistics would make eval-mode embeddings 20 times too short here."""
    torch.manual_seed(0)
    images, labels = 0.05 * torch.randn(60, 8), torch.arange(60) % C
    model = nn.Sequential(nn.Linear(8, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, M))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels), batch_size=60)
    loss = NonIsotropicVMFLoss(C, M)
    warm_start_from_loader(loss, model, loader)
    assert model[1].momentum == 0.1
    in_training = model(images).norm(dim=1).mean() * loss.embedding_scale
    assert in_training.item() == pytest.approx(4 * M, rel=0.02)
    statistics = model[1].running_var.clone()
    warm_start_from_loader(loss, model, loader)
    assert torch.equal(model[1].running_var, statistics), "statistics that are there are not touched"


@pytest.mark.parametrize("joint", [False, True])
def test_scale_moves_to_the_head_and_the_loss_sees_the_same(joint):
    torch.manual_seed(0)
    features, labels = torch.randn(50, 8), torch.arange(50) % C
    head = EmbeddingHead(8, M)
    loss = NonIsotropicVMFLoss(C, M, estimator="analytic")
    if joint:
        loss = JointProxyLoss(loss, pml_losses.ProxyAnchorLoss(C, M), weight=1.0)
    loss.warm_start(head(features).detach(), labels)
    before = loss(head(features), labels)
    move_scale_to_head(loss, head)
    assert head(features).norm(dim=1).mean().item() == pytest.approx(4 * M, rel=1e-4)
    torch.testing.assert_close(loss(head(features), labels), before)
    fixed = NonIsotropicVMFLoss(C, M, embedding_scale=3.0)
    move_scale_to_head(fixed, head)
    assert fixed.embedding_scale.item() == 3.0


@each(ALL)
def test_param_groups_hold_every_parameter_once(make):
    loss = make(C, M)
    groups = loss.param_groups(1e-3, proxy_lr=0.5, concentration_lr=0.25, temperature_lr=0.125)
    held = [parameter for group in groups for parameter in group["params"]]
    assert sorted(map(id, held)) == sorted(map(id, loss.parameters()))
    rates = {group["name"]: group["lr"] for group in groups}
    assert rates["proxies"] == 0.5
    assert rates.get("log_concentration", 0.25) == 0.25
    assert rates["log_temperature"] == 0.125
    torch.optim.AdamW(groups, weight_decay=0.1)
    assert {g["name"]: g["weight_decay"] for g in groups if "weight_decay" in g}["log_temperature"] == 0


def test_param_groups_of_a_joint_loss_hold_the_guidance_losses_own_parameters():
    class Guidance(pml_losses.ProxyAnchorLoss):
        def __init__(self, *args):
            super().__init__(*args)
            self.own = nn.Parameter(torch.ones(()))

    joint = JointProxyLoss(NonIsotropicVMFLoss(C, M), Guidance(C, M))
    groups = {group["name"]: group for group in joint.param_groups(1e-3, guidance_lr=0.7)}
    assert groups["guidance"]["lr"] == 0.7
    assert groups["guidance"]["params"] == [joint.guidance.own]


def test_fixed_temperature_is_a_buffer(batch):
    loss = NonIsotropicVMFLoss(C, M, temperature=0.2, learnable_temperature=False)
    assert "log_temperature" not in dict(loss.named_parameters())
    assert loss.temperature.item() == pytest.approx(0.2)
    assert "log_temperature" in loss.state_dict()


def test_shared_concentrations_are_one_row(batch):
    loss = NonIsotropicVMFLoss(C, M, concentration="shared")
    assert loss.log_concentration.shape == (1, M)
    assert loss.concentration.shape == (C, M)
    assert NonIsotropicVMFLoss(C, M).log_concentration.shape == (C, M)
    isotropic = VMFProxyLoss(C, M, concentration="shared")
    assert isotropic.log_concentration.shape == (1, 1)
    isotropic(*batch).backward()
    assert isotropic.log_concentration.grad.abs().sum() > 0


# Training -------------------------------------------------------------------------------------------------------


def toy_problem(classes=10, features=32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, features, generator=generator)
    labels = torch.arange(classes).repeat(40)
    return centres[labels] + 0.6 * torch.randn(len(labels), features, generator=generator), labels


@pytest.mark.parametrize("dim", [16, 128, 512, 2048])
@each(
    {
        "EL-nivMF": NonIsotropicVMFLoss,
        "EL-nivMF exact": lambda c, m: NonIsotropicVMFLoss(c, m, normalizer="exact"),
        "EL-nivMF analytic": lambda c, m: NonIsotropicVMFLoss(c, m, estimator="analytic"),
        "EL-vMF": VMFProxyLoss,
    }
)
def test_defaults_train_out_of_the_box(make, dim):
    """A fresh Linear head, no warm start, an ordinary optimizer: the proxies classify what they were trained on."""
    torch.manual_seed(0)
    features, labels = toy_problem()
    head, loss = nn.Linear(32, dim), make(10, dim)
    optimizer = torch.optim.Adam([{"params": head.parameters(), "lr": 1e-3}, *loss.param_groups(1e-3)])
    for step in range(60):
        picked = torch.randint(0, len(labels), (64,), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss(head(features[picked]), labels[picked]).backward()
        optimizer.step()
    loss.eval()
    accuracy = (loss.get_logits(head(features)).argmax(1) == labels).float().mean()
    assert accuracy > 0.95
