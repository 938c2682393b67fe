"""Chunks change memory and nothing else, sampled negatives stand for all classes, gradients may be sparse."""

import math
import resource

import pytest
import torch
from pytorch_metric_learning import losses as pml_losses
from pytorch_metric_learning import regularizers

from pml_nivmf.experiments.bench import peak_megabytes
from pml_nivmf.losses import FullSoftmax, JointProxyLoss, NonIsotropicVMFLoss, SampledSoftmax, ShardedSoftmax
from pml_nivmf.losses.softmax import draw_classes

from .variants import SINGLE, sampled

C, M, B = 7, 12, 10


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


def twins(make, softmax):
    """The loss with FullSoftmax() and with `softmax`, in float64, with the same uneven parameters."""
    plain, other = make(C, M).double(), make(C, M, softmax=softmax).double()
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            if name.startswith("log_"):
                parameter.add_(0.2 * torch.randn_like(parameter))
    other.load_state_dict(plain.state_dict())
    return plain, other


# Chunks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", SINGLE.values(), ids=SINGLE.keys())
@pytest.mark.parametrize("chunk_size", [3, 100])
def test_chunks_change_no_value_and_no_gradient(make, chunk_size):
    losses, batch = twins(make, FullSoftmax(chunk_size)), a_batch(dtype=torch.float64)
    torch.testing.assert_close(*(value_and_gradients(loss, batch) for loss in losses))
    logits = [logits_of(loss, batch) for loss in losses]
    torch.testing.assert_close(*logits)
    gradients = [torch.autograd.grad(x.square().sum(), loss.proxies) for x, loss in zip(logits, losses, strict=True)]
    torch.testing.assert_close(*gradients)


def logits_of(loss, batch):
    torch.manual_seed(1)
    return loss.get_logits(batch[0])


def test_frozen_parameters_get_no_gradient():
    plain, chunked = twins(NonIsotropicVMFLoss, FullSoftmax(3))
    for loss in (plain, chunked):
        loss.proxies.requires_grad_(False)
    batch = a_batch(dtype=torch.float64)
    frozen = value_and_gradients(chunked, batch)
    assert frozen[2]["proxies"] is None
    torch.testing.assert_close(frozen, value_and_gradients(plain, batch))


def test_chunks_in_a_backward_under_autocast():
    plain, chunked = (NonIsotropicVMFLoss(C, M, softmax=softmax) for softmax in (FullSoftmax(), FullSoftmax(3)))
    chunked.load_state_dict(plain.state_dict())
    batch = a_batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = value_and_gradients(chunked, batch)
    torch.testing.assert_close(result, value_and_gradients(plain, batch), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("softmax", "concentration"),
    [(FullSoftmax, "per_class"), (FullSoftmax, "shared_plus_deviation"), (ShardedSoftmax, "per_class")],
)
def test_memory_beyond_the_gradients_does_not_grow_with_classes(softmax, concentration):
    """What is alive at the peak is the gradients, as large as the parameters, and something of a chunk's size."""

    def extra_megabytes(classes, chunk_size):
        options = {"concentration": concentration, "distance": sampled(4)}
        loss = NonIsotropicVMFLoss(classes, 32, softmax=softmax(chunk_size), **options)
        loss.concentration_regularizer = None  # PML's regularizers take all rows at once
        batch = a_batch(classes, 32, size=64)
        loss(*batch)  # sets the scale
        peak = peak_megabytes(lambda: loss(*batch).backward(), torch.device("cpu"))
        return peak - sum(p.numel() for p in loss.parameters()) * 4e-6

    few, many = extra_megabytes(1_000, 250), extra_megabytes(8_000, 250)
    whole = extra_megabytes(8_000, None)
    assert many < 1.2 * few + 0.2
    assert whole > 5 * many


# Negatives ------------------------------------------------------------------------------------------------------


def test_the_corrected_sum_is_right_on_average():
    """E Σ e^{logit + correction} over the drawn classes is the sum over all classes."""
    torch.manual_seed(0)
    logits = torch.randn(40, dtype=torch.float64)
    labels = torch.tensor([0, 5, 5, 9])
    sums = []
    for _ in range(1500):
        classes, correction, _ = draw_classes(labels, 40, 10, torch.float64)
        sums.append(torch.exp(logits[classes] + correction).sum())
    sums = torch.stack(sums)
    assert abs(sums.mean() - logits.exp().sum()) < 4 * sums.std() / math.sqrt(len(sums))


@pytest.mark.parametrize("make", SINGLE.values(), ids=SINGLE.keys())
def test_as_many_negatives_as_classes_is_the_whole_softmax(make):
    losses, batch = twins(make, SampledSoftmax(C)), a_batch(dtype=torch.float64)
    # The images' samples come first from the generator, so both losses see the same.
    torch.testing.assert_close(*(value_and_gradients(loss, batch) for loss in losses))


def test_only_drawn_rows_get_a_gradient_and_sparse_is_the_same():
    dense = NonIsotropicVMFLoss(1000, M, softmax=SampledSoftmax(20))
    sparse = NonIsotropicVMFLoss(1000, M, softmax=SampledSoftmax(20, sparse=True))
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
    plain, one_negative = twins(NonIsotropicVMFLoss, SampledSoftmax(1))
    batch = a_batch(dtype=torch.float64)
    torch.testing.assert_close(one_negative.eval()(*batch), plain.eval()(*batch))
    torch.testing.assert_close(one_negative.get_logits(batch[0]), plain.get_logits(batch[0]))


def test_one_class_has_no_negatives():
    embeddings = a_batch()[0]
    loss = NonIsotropicVMFLoss(1, M, softmax=SampledSoftmax(5))
    value = loss(embeddings, torch.zeros(B, dtype=torch.long))
    value.backward()
    assert value.item() == pytest.approx(0, abs=1e-5)
    assert torch.isfinite(loss.proxies.grad).all()


def test_bad_options_are_named():
    with pytest.raises(ValueError, match="n_negatives must be an integer of at least 1, got 0"):
        SampledSoftmax(0)
    with pytest.raises(ValueError, match="chunk_size must be an integer of at least 1"):
        ShardedSoftmax(chunk_size=2.5)


@pytest.mark.parametrize("softmax", [SampledSoftmax(3, sparse=True), ShardedSoftmax()], ids=str)
def test_what_needs_all_rows_is_refused(softmax):
    for options in ({"weight_regularizer": regularizers.LpRegularizer()}, {"concentration": "shared_plus_deviation"}):
        with pytest.raises(ValueError, match="a regularizer needs all proxies and dense gradients"):
            NonIsotropicVMFLoss(C, M, softmax=softmax, **options)
    with pytest.raises(ValueError, match="a guidance loss needs all proxies and dense gradients"):
        JointProxyLoss(NonIsotropicVMFLoss(C, M, softmax=softmax), pml_losses.ProxyAnchorLoss(C, M))


# As many classes as products, and a million ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("classes", "softmax"),
    [
        (11_318, FullSoftmax(2048)),
        (11_318, SampledSoftmax(1024)),
        (11_318, SampledSoftmax(1024, sparse=True)),
        pytest.param(10**6, FullSoftmax(8192), marks=pytest.mark.slow),
        pytest.param(10**6, SampledSoftmax(8192, sparse=True), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_many_classes_train(classes, softmax):
    torch.manual_seed(0)
    embeddings, labels = torch.randn(32, 128, requires_grad=True), torch.randint(0, classes, (32,))
    loss = NonIsotropicVMFLoss(classes, 128, softmax=softmax)
    groups = loss.param_groups(1e-2)
    sparse, dense = ([group for group in groups if group["sparse"] is flag] for flag in (True, False))
    optimizers = [torch.optim.Adam(dense), *([torch.optim.SparseAdam(sparse)] if sparse else [])]
    values = []
    for _ in range(3):
        loss.zero_grad()
        values.append(loss(embeddings, labels))
        values[-1].backward()
        for optimizer in optimizers:
            optimizer.step()
    assert values[2] < 0.5 * values[0]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 8e6, "kilobytes"
