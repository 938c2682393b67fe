"""Any dimension, concentration, batch and pair gives finite values and gradients, or the documented error."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pml_nivmf.distances import pack_nivmf
from pml_nivmf.functional import log_vmf_normalizer, mean_resultant_length, relative_log_normalizer
from pml_nivmf.functional.sampling import sample_vmf

from ..distances.variants import ALL, NIVMF, VMF, each
from ..losses.variants import FEW
from .strategies import FLOATS, assert_finite, bounded, embeddings, labelled

DIMENSIONS = st.integers(2, 3000)
POWERS = st.lists(st.floats(-30, 30), min_size=1, max_size=8)


@bounded(60)
@given(dim=DIMENSIONS, powers=POWERS, dtype=st.sampled_from(FLOATS))
def test_normalizer_and_mean_length(dim, powers, dtype):
    kappa = torch.tensor([0.0, *(10.0**power for power in sorted(powers))], dtype=torch.float64)
    kappa = kappa[kappa < torch.finfo(dtype).max].to(dtype).requires_grad_()
    lengths, relative = mean_resultant_length(kappa, dim), relative_log_normalizer(kappa, dim)
    for values in (log_vmf_normalizer(kappa, dim), relative, lengths):
        (slope,) = torch.autograd.grad(values.sum(), kappa, create_graph=True)
        assert_finite(values, slope, *torch.autograd.grad(slope.sum(), kappa, retain_graph=True))
        assert values.dtype == dtype
    assert lengths[0] == relative[0] == 0
    assert ((lengths >= 0) & (lengths <= 1)).all()
    assert (lengths.diff() >= -1e-6).all(), "A grows with κ"
    assert (relative.diff() <= 1e-6).all(), "log C falls with κ"
    slope = torch.autograd.grad(relative.sum(), kappa)[0]
    torch.testing.assert_close(slope, -lengths.detach(), rtol=2e-2 if dtype.itemsize == 2 else 1e-5, atol=1e-5)


@bounded(40)
@given(
    natural=embeddings(exponents=(-30, 18)), draws=st.integers(1, 5), antithetic=st.booleans(), seed=st.integers(0, 9)
)
def test_samples_are_unit_vectors_with_finite_gradients(natural, draws, antithetic, seed):
    torch.manual_seed(seed)
    if not torch.isfinite(natural).all():  # float16 holds nothing beyond 65504
        return
    natural.requires_grad_()
    samples = sample_vmf(natural, (draws,), antithetic=antithetic)
    assert samples.shape == (draws, *natural.shape)
    assert samples.dtype == natural.dtype
    lengths = samples.double().norm(dim=-1)
    assert (lengths - 1).abs().max() < (2e-2 if natural.dtype.itemsize == 2 else 1e-5)
    (gradient,) = torch.autograd.grad((samples * torch.randn_like(samples)).sum(), natural)
    assert_finite(gradient)


REFUSED = ("is too large to be squared", "nivMF concentrations in")
FULL = (torch.float32, torch.float64)


@st.composite
def pairs(draw, exponents=(-30, 30)):
    dim = draw(st.sampled_from([2, 3, 16, 130]))
    dtype = draw(st.sampled_from(FULL))
    queries, references = (draw(embeddings(dim=dim, exponents=exponents, dtypes=(dtype,))) for _ in range(2))
    if draw(st.booleans()):  # the same vector on both sides, or its opposite
        references[0] = queries[0] * draw(st.sampled_from([1, -1]))
    return queries.requires_grad_(), references.requires_grad_()


@st.composite
def concentrations(draw, shape, dtype):
    low, high = sorted(draw(st.tuples(st.floats(-12, 12), st.floats(-12, 12))))
    return 10 ** (low + (high - low) * torch.rand(shape, dtype=dtype))


def distances_or_none(distance, queries, references, limit):
    """None where a documented error says that a norm is too large; norms below `limit` must be accepted."""
    try:
        return distance(queries, references)
    except ValueError as error:
        largest = max(queries.detach().norm(dim=1).max(), references.detach().norm(dim=1).max())
        if any(text in str(error) for text in REFUSED) and largest > limit:
            return None
        raise


@each(ALL)
@bounded(10)
@given(pair=pairs())
def test_distances_are_finite_or_the_documented_error(make, pair):
    queries, references = pair
    limit = (1e15 if make in VMF.values() else 1e8) if queries.dtype == torch.float32 else 1e60
    values = distances_or_none(make(), queries, references, limit)
    if values is not None:
        assert values.shape == (len(queries), len(references))
        gradients = torch.autograd.grad(values.sum(), pair, allow_unused=True)
        assert_finite(values, *(gradient for gradient in gradients if gradient is not None))


@each(NIVMF)
@bounded(10)
@given(data=st.data(), dim=st.sampled_from([2, 3, 16, 130]), dtype=st.sampled_from(FULL))
def test_packed_references(make, data, dim, dtype):
    queries = data.draw(embeddings(dim=dim, exponents=(-20, 15), dtypes=(dtype,))).requires_grad_()
    spread = data.draw(concentrations((3, dim), dtype)).requires_grad_()
    try:
        references = pack_nivmf(torch.randn(3, dim, dtype=dtype), spread)
    except ValueError as error:
        assert "nivMF concentrations in torch.float32 must be between" in str(error)  # noqa: PT017
        assert spread.max() > 5e8 or spread.min() < 2e-9 or (spread.amax(1) / spread.amin(1)).max() > 5e8
        return
    values = make()(queries, references)
    gradients = torch.autograd.grad(values.sum(), [queries, spread])
    assert_finite(values, *gradients)


def value_or_none(loss, embeddings, labels):
    """The loss, or None if it raised the documented error and a squared norm does overflow."""
    try:
        return loss(embeddings, labels)
    except ValueError as error:
        overflows = not torch.isfinite(embeddings.detach().square().sum(dim=1)).all()
        if overflows and "is too large to be squared" in str(error):
            return None
        raise


@pytest.mark.filterwarnings("ignore:all embeddings have length one")
@each(FEW)
@bounded(10)
@given(batch=labelled(), seed=st.integers(0, 100))
def test_losses_are_finite_or_the_documented_error(make, batch, seed):
    embeddings, labels, classes = batch
    torch.manual_seed(seed)
    loss = make(classes, embeddings.shape[1])
    # Gradients of half-precision embeddings may exceed the range of their dtype: take them in float32.
    embeddings = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32)).requires_grad_()
    for _ in range(2):  # the first call sets the scale, the second uses it
        value = value_or_none(loss, embeddings, labels)
        if value is not None:
            assert_finite(value, *torch.autograd.grad(value, [embeddings, *loss.parameters()]))
            assert_finite(loss.get_logits(embeddings))
