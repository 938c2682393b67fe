"""Any queries and references give finite distances with finite gradients, or the documented error."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from pml_nivmf.distances import pack_nivmf

from ..distances.variants import ALL, NIVMF, VMF, each
from .strategies import assert_finite, bounded, embeddings

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
def test_finite_or_the_documented_error(make, pair):
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
