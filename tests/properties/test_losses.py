"""Any batch gives a finite loss with finite gradients, or the documented error. Never NaN, never a hang."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ..conformance.variants import ALL
from ..distances.variants import each
from .strategies import assert_finite, bounded, labelled

CASES = {"batch": labelled(), "seed": st.integers(0, 100)}
DOCUMENTED = ("is too large to be squared",)
silent = pytest.mark.filterwarnings("ignore:all embeddings have length one")


def value_or_none(loss, embeddings, labels):
    """The loss, or None if it raised the documented error and a squared norm does overflow."""
    try:
        return loss(embeddings, labels)
    except ValueError as error:
        overflows = not torch.isfinite(embeddings.detach().square().sum(dim=1)).all()
        if overflows and any(text in str(error) for text in DOCUMENTED):
            return None
        raise


def check(make, batch, seed):
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


@silent
@each(ALL)
@bounded(10)
@given(**CASES)
def test_finite_or_the_documented_error(make, batch, seed):
    check(make, batch, seed)


@pytest.mark.slow
@silent
@each(ALL)
@bounded(150)
@given(**CASES)
def test_many_examples(make, batch, seed):
    check(make, batch, seed)


@silent
@bounded(15)
@given(batch=labelled(exponents=(-3, 3), dtypes=(torch.float64,)), copies=st.integers(2, 4))
def test_repeating_a_batch_changes_nothing(batch, copies):
    """The mean over a batch in which every embedding is there several times is the mean over the batch."""
    embeddings, labels, classes = batch
    loss = ALL["EL-nivMF"](classes, embeddings.shape[1]).double()
    once = loss(embeddings, labels)
    torch.testing.assert_close(loss(embeddings.repeat(copies, 1), labels.repeat(copies)), once)
