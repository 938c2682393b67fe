"""Any batch gives a finite loss with finite gradients, or the documented error. Never NaN, never a hang."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ..losses.variants import ALL
from .strategies import assert_finite, bounded, labelled

QUICK = ("EL-nivMF", "EL-nivMF analytic exact", "EL-vMF", "KL-vMF", "nivMF exact", "L2", "PANC + EL-nivMF")
CASES = {"batch": labelled(), "seed": st.integers(0, 100), "options": st.sampled_from([{}, {"chunk_size": 2}])}
DOCUMENTED = ("infinity, first in row", "is too large to be squared")
silent = pytest.mark.filterwarnings("ignore:all embeddings have length one")


def each(names):
    return pytest.mark.parametrize("make", [ALL[name] for name in names], ids=names)


def overflows(loss, embeddings):
    """Whether some squared norm does, as it comes or scaled, in the dtype that the loss computes in."""
    scale = getattr(loss, "probabilistic", loss).embedding_scale.double()
    norms = embeddings.detach().double().norm(dim=1)
    norms = torch.cat([norms, scale * norms]).to(torch.promote_types(embeddings.dtype, torch.float32))
    return not torch.isfinite(norms.square()).all()


def value_or_none(loss, embeddings, labels):
    """The loss, or None if it was refused for the documented reason, and rightly."""
    try:
        return loss(embeddings, labels)
    except ValueError as error:
        if any(text in str(error) for text in DOCUMENTED) and overflows(loss, embeddings):
            return None
        raise


def check(make, batch, seed, options):
    embeddings, labels, classes = batch
    torch.manual_seed(seed)
    loss = make(classes, embeddings.shape[1], **options)
    # Gradients of half-precision embeddings may exceed their own range, which is not the loss's doing: it computes
    # in float32, so take them there.
    embeddings = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32)).requires_grad_()
    for _ in range(2):  # the first call sets the scale, the second uses it
        value = value_or_none(loss, embeddings, labels)
        if value is not None:
            assert_finite(value, *torch.autograd.grad(value, [embeddings, *loss.parameters()]))
            assert_finite(loss.get_logits(embeddings))


@silent
@each(QUICK)
@bounded(10)
@given(**CASES)
def test_finite_or_the_documented_error(make, batch, seed, options):
    check(make, batch, seed, options)


@pytest.mark.slow
@silent
@each(ALL)
@bounded(150)
@given(**CASES)
def test_many_examples(make, batch, seed, options):
    check(make, batch, seed, options)


@silent
@bounded(15)
@given(batch=labelled(exponents=(-6, 4), dtypes=(torch.float16, torch.bfloat16)))
def test_half_precision_is_computed_as_float32(batch):
    """The dtype that embeddings come in matters by its rounding only."""
    embeddings, labels, classes = batch
    loss = ALL["EL-vMF"](classes, embeddings.shape[1])
    loss(embeddings, labels)
    torch.testing.assert_close(loss(embeddings, labels), loss(embeddings.float(), labels))


@silent
@bounded(15)
@given(batch=labelled(exponents=(-3, 3), dtypes=(torch.float64,)), copies=st.integers(2, 4))
def test_repeating_a_batch_changes_nothing(batch, copies):
    """The mean over a batch in which every embedding is there several times is the mean over the batch."""
    embeddings, labels, classes = batch
    loss = ALL["EL-nivMF analytic"](classes, embeddings.shape[1]).double()
    once = loss(embeddings, labels)
    torch.testing.assert_close(loss(embeddings.repeat(copies, 1), labels.repeat(copies)), once)
