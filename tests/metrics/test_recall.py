"""The plain function."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pml_nivmf.metrics import recall_at_k


@given(st.data())
def test_naive_loop(data):
    queries, neighbours = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 8))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    found = torch.randint(0, 4, (queries, neighbours), generator=generator)
    labels = torch.randint(0, 4, (queries,), generator=generator)
    ks = data.draw(st.lists(st.integers(1, neighbours)))
    expected = {k: sum(labels[i] in found[i, :k] for i in range(queries)) / queries for k in ks}
    assert recall_at_k(found, labels, ks) == pytest.approx(expected)


def test_by_hand():
    found = torch.tensor([[1, 2, 3], [1, 1, 2], [5, 5, 5]])
    assert recall_at_k(found, torch.tensor([1, 2, 0]), (1, 2, 3)) == pytest.approx({1: 1 / 3, 2: 1 / 3, 3: 2 / 3})


def test_input_that_does_not_fit():
    found = torch.zeros(3, 2)
    for k in (0, 3):
        with pytest.raises(ValueError, match=rf"k must be between 1 and the 2 neighbours given, got {k}"):
            recall_at_k(found, torch.zeros(3), (k,))
    with pytest.raises(ValueError, match=r"with 2 queries, got \(3, 2\)"):
        recall_at_k(found, torch.zeros(2), (1,))
