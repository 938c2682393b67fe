"""Many classes: chunks change memory and nothing else, sampled negatives stand for all, gradients may be sparse."""

import math

import pytest
import torch
from pytorch_metric_learning import losses as pml_losses
from pytorch_metric_learning import regularizers
from torch import nn

from pml_nivmf.experiments.benchmarks.speed import peak_megabytes
from pml_nivmf.losses import JointProxyLoss, NonIsotropicVMFLoss, VMFProxyLoss
from pml_nivmf.losses.negatives import draw_candidates

from .variants import SINGLE

C, M, B = 7, 12, 10
REFUSED = -1e30


def a_batch(classes=C, dim=M, size=B, dtype=torch.float32):
    torch.manual_seed(0)
    return torch.randn(size, dim, dtype=dtype, requires_grad=True), torch.randint(0, classes, (size,))


def value_and_gradients(loss, batch, seed=1):
    loss.zero_grad()
    batch[0].grad = None
    torch.manual_seed(seed)
    value = loss(*batch)
    value.backward()
    return value.detach(), batch[0].grad, {name: parameter.grad for name, parameter in loss.named_parameters()}


def twins(make, **options):
    """The loss without and with `options`, in float64, with the same uneven parameters."""
    plain, other = make(C, M).double(), make(C, M, **options).double()
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            if name.startswith("log_"):
                parameter.add_(0.2 * torch.randn_like(parameter))
    other.load_state_dict(plain.state_dict())
    return plain, other


# Chunks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", SINGLE.values(), ids=SINGLE.keys())
@pytest.mark.parametrize("chunk_size", [1, 3, 100])
def test_chunks_change_no_value_and_no_gradient(make, chunk_size):
    plain, chunked = twins(make, chunk_size=chunk_size)
    batch = a_batch(dtype=torch.float64)
    torch.testing.assert_close(value_and_gradients(chunked, batch), value_and_gradients(plain, batch))
    torch.manual_seed(1)
    logits = chunked.get_logits(batch[0])
    torch.manual_seed(1)
    torch.testing.assert_close(logits, plain.get_logits(batch[0]))
    if chunk_size == 3:
        torch.testing.assert_close(
            torch.autograd.grad(logits.square().sum(), chunked.proxies, retain_graph=True),
            torch.autograd.grad(plain_logits(plain, batch).square().sum(), plain.proxies),
        )


def plain_logits(loss, batch):
    torch.manual_seed(1)
    return loss.get_logits(batch[0])


def test_frozen_parameters_and_plain_embeddings_get_no_gradient():
    plain, chunked = twins(NonIsotropicVMFLoss, chunk_size=3)
    for loss in (plain, chunked):
        loss.proxies.requires_grad_(False)
    batch = a_batch(dtype=torch.float64)
    frozen = value_and_gradients(chunked, batch)
    assert frozen[2]["proxies"] is None
    torch.testing.assert_close(frozen, value_and_gradients(plain, batch))
    embeddings = batch[0].detach()
    torch.manual_seed(1)
    chunked.zero_grad()
    chunked(embeddings, batch[1]).backward()
    torch.testing.assert_close(chunked.log_concentration.grad, frozen[2]["log_concentration"])


def test_chunks_in_a_backward_under_autocast():
    plain = NonIsotropicVMFLoss(C, M, estimator="analytic")
    chunked = NonIsotropicVMFLoss(C, M, estimator="analytic", chunk_size=3)
    chunked.load_state_dict(plain.state_dict())
    batch = a_batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = value_and_gradients(chunked, batch)
    torch.testing.assert_close(result, value_and_gradients(plain, batch), rtol=1e-4, atol=1e-5)


def test_gradients_accumulate_over_chunked_batches():
    plain, chunked = twins(lambda *a, **k: NonIsotropicVMFLoss(*a, estimator="analytic", **k), chunk_size=2)
    batch = a_batch(dtype=torch.float64)
    for loss in (plain, chunked):
        for _ in range(2):
            loss(*batch).backward()
    torch.testing.assert_close(chunked.proxies.grad, plain.proxies.grad)


@pytest.mark.parametrize("estimator", ["monte_carlo", "analytic"])
@pytest.mark.parametrize("concentration", ["per_class", "shared", "shared_plus_deviation"])
def test_memory_beyond_the_gradients_does_not_grow_with_classes(estimator, concentration):
    """What is alive at the peak is the gradients, as large as the parameters, and something of a chunk's size."""

    def extra_megabytes(classes, chunk_size):
        options = {"estimator": estimator, "n_samples": 4, "concentration": concentration}
        loss = NonIsotropicVMFLoss(classes, 32, chunk_size=chunk_size, concentration_reg_weight=0, **options)
        loss.concentration_regularizer = None  # PML's regularizers take all rows at once
        batch = a_batch(classes, 32, size=64)
        loss(*batch)  # sets the scale
        peak = peak_megabytes(lambda: loss(*batch).backward(), torch.device("cpu"))
        return peak - sum(p.numel() for p in loss.parameters()) * 4e-6

    few, many = extra_megabytes(2_000, 500), extra_megabytes(16_000, 500)
    whole = extra_megabytes(16_000, None)
    assert many < 1.2 * few + 0.2
    assert whole > 5 * many


# Negatives ------------------------------------------------------------------------------------------------------


def test_candidates_hold_each_class_of_the_batch_once_and_the_negatives_asked_for():
    torch.manual_seed(0)
    for _ in range(50):
        labels = torch.randint(0, 30, (12,))
        found = draw_candidates(labels, 30, 8, torch.float64)
        accepted = found.classes[found.offset > REFUSED]
        positives = set(labels.tolist())
        assert len(accepted) == len(set(accepted.tolist())) == len(positives) + 8
        assert positives < set(accepted.tolist())
        assert torch.equal(found.classes[found.target], labels)
        assert (found.offset[found.target] == 0).all()
        correction = math.log((30 - len(positives)) / 8)
        is_negative = torch.tensor([c not in positives for c in found.classes.tolist()])
        assert found.offset[is_negative & (found.offset > REFUSED)].unique().tolist() == [pytest.approx(correction)]
        assert found.classes.shape == (12 + 8 + 12,)


def test_negatives_are_drawn_uniformly():
    torch.manual_seed(0)
    labels = torch.tensor([3, 3, 11])
    counts, draws = torch.zeros(20), 4000
    for _ in range(draws):
        found = draw_candidates(labels, 20, 5, torch.float32)
        counts[found.classes[found.offset > REFUSED]] += 1
    assert counts[3] == counts[11] == draws
    others = counts[[c for c in range(20) if c not in (3, 11)]] / draws
    deviation = math.sqrt(5 / 18 * 13 / 18 / draws)
    assert (others - 5 / 18).abs().max() < 4.5 * deviation


def test_the_corrected_sum_is_right_on_average():
    """E Σ_candidates e^{logit + offset} is the sum over all classes."""
    torch.manual_seed(0)
    logits = torch.randn(40, dtype=torch.float64)
    labels = torch.tensor([0, 5, 5, 9])
    sums = []
    for _ in range(3000):
        found = draw_candidates(labels, 40, 10, torch.float64)
        sums.append(torch.exp(logits[found.classes] + found.offset).sum())
    sums = torch.stack(sums)
    assert abs(sums.mean() - logits.exp().sum()) < 4 * sums.std() / math.sqrt(len(sums))


@pytest.mark.parametrize("make", SINGLE.values(), ids=SINGLE.keys())
@pytest.mark.parametrize("chunk_size", [None, 3])
def test_as_many_negatives_as_classes_is_the_whole_softmax(make, chunk_size):
    plain, sampled = twins(make, negative_samples=C, chunk_size=chunk_size)
    batch = a_batch(dtype=torch.float64)
    # The images' samples come first from the generator, so both losses see the same.
    torch.testing.assert_close(value_and_gradients(sampled, batch), value_and_gradients(plain, batch))


def test_only_drawn_rows_get_a_gradient_and_sparse_is_the_same():
    dense = NonIsotropicVMFLoss(1000, M, estimator="analytic", negative_samples=20)
    sparse = NonIsotropicVMFLoss(1000, M, estimator="analytic", negative_samples=20, sparse=True)
    sparse.load_state_dict(dense.state_dict())
    batch = a_batch(1000)
    value, _, gradients = value_and_gradients(dense, batch)
    sparse_value, _, sparse_gradients = value_and_gradients(sparse, batch)
    torch.testing.assert_close(sparse_value, value)
    for name in ("proxies", "log_concentration"):
        assert gradients[name].any(dim=1).sum() == len(batch[1].unique()) + 20
        assert sparse_gradients[name].is_sparse
        torch.testing.assert_close(sparse_gradients[name].to_dense(), gradients[name])


def test_evaluation_takes_all_classes():
    plain, sampled = twins(lambda *a, **k: NonIsotropicVMFLoss(*a, estimator="analytic", **k), negative_samples=1)
    batch = a_batch(dtype=torch.float64)
    plain(*batch)
    sampled.load_state_dict(plain.state_dict())
    torch.testing.assert_close(sampled.eval()(*batch), plain.eval()(*batch))
    torch.testing.assert_close(sampled.get_logits(batch[0]), plain.get_logits(batch[0]))


def test_one_class_has_no_negatives():
    embeddings = a_batch()[0]
    loss = NonIsotropicVMFLoss(1, M, negative_samples=5)
    value = loss(embeddings, torch.zeros(B, dtype=torch.long))
    value.backward()
    assert value.item() == pytest.approx(0, abs=1e-5)
    assert torch.isfinite(loss.proxies.grad).all()


@pytest.mark.parametrize("sparse", [False, True])
def test_sampled_negatives_train(sparse):
    torch.manual_seed(0)
    classes, labels = 60, torch.arange(60).repeat(10)
    features = torch.randn(classes, 32)[labels] + 0.3 * torch.randn(len(labels), 32)
    head = nn.Linear(32, 32)
    loss = NonIsotropicVMFLoss(classes, 32, estimator="analytic", negative_samples=10, sparse=sparse)
    groups = loss.param_groups(1e-3)
    optimizers = [torch.optim.Adam([{"params": head.parameters(), "lr": 1e-2}])]
    if sparse:
        optimizers.append(torch.optim.SparseAdam([group for group in groups if group["sparse"]]))
        groups = [group for group in groups if not group["sparse"]]
        assert [group["name"] for group in groups] == ["log_temperature"]
    optimizers.append(torch.optim.Adam(groups))
    for step in range(80):
        picked = torch.randint(0, len(labels), (32,), generator=torch.Generator().manual_seed(step))
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss(head(features[picked]), labels[picked]).backward()
        for optimizer in optimizers:
            optimizer.step()
    accuracy = (loss.get_logits(head(features)).argmax(1) == labels).float().mean()
    assert accuracy > 0.9


def test_bad_options_are_named():
    for count in (0, -1, 2.5):
        with pytest.raises(ValueError, match=f"negative_samples must be an integer of at least 1, got {count}"):
            VMFProxyLoss(C, M, negative_samples=count)
    with pytest.raises(ValueError, match="sparse=True needs negative_samples"):
        NonIsotropicVMFLoss(C, M, sparse=True)
    for options in (
        {"weight_regularizer": regularizers.LpRegularizer()},
        {"concentration": "shared_plus_deviation"},
    ):
        with pytest.raises(ValueError, match="its gradients are dense"):
            NonIsotropicVMFLoss(C, M, negative_samples=3, sparse=True, **options)
    with pytest.raises(ValueError, match="do not go together"):
        JointProxyLoss(NonIsotropicVMFLoss(C, M, negative_samples=3, sparse=True), pml_losses.ProxyAnchorLoss(C, M))


# As many as products, and a million -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("classes", "options"),
    [
        pytest.param(11_318, {}, id="SOP, 5 samples"),
        pytest.param(11_318, {"chunk_size": 2048}, id="SOP, 5 samples, chunks"),
        pytest.param(11_318, {"estimator": "analytic"}, id="SOP, analytic"),
        pytest.param(10**6, {"chunk_size": 8192}, marks=pytest.mark.slow, id="million, 5 samples, chunks"),
        pytest.param(
            10**6, {"estimator": "analytic", "chunk_size": 8192}, marks=pytest.mark.slow, id="million, analytic, chunks"
        ),
        pytest.param(10**6, {"negative_samples": 8192, "sparse": True}, marks=pytest.mark.slow, id="million, sampled"),
    ],
)
def test_many_classes_train(classes, options):
    import resource

    torch.manual_seed(0)
    embeddings, labels = torch.randn(32, 128, requires_grad=True), torch.randint(0, classes, (32,))
    loss = NonIsotropicVMFLoss(classes, 128, **options)
    groups = loss.param_groups(1e-2)
    rows = [group for group in groups if group.get("sparse", False)]
    optimizers = [torch.optim.SparseAdam(rows)] if rows else []
    optimizers.append(torch.optim.Adam([group for group in groups if not group.get("sparse", False)]))
    values = []
    for _ in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        value = loss(embeddings, labels)
        value.backward()
        for optimizer in optimizers:
            optimizer.step()
        values.append(value.item())
    assert values[2] < 0.5 * values[0]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 8e6, "kilobytes"
