"""Any batch gives a finite loss with finite gradients, or the documented error. Never NaN, never a hang."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ..distances.variants import each
from ..losses.variants import FEW
from .strategies import assert_finite, bounded, labelled


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
def test_finite_or_the_documented_error(make, batch, seed):
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
