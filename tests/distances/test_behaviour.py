"""What all distances do by themselves; tests/conformance has them inside PML's losses, miners and search."""

import pytest
import torch
from pytorch_metric_learning.distances import BaseDistance

from pml_nivmf.distances import KLDistance, NivMFDistance, PPKDistance, pack_nivmf

from .. import references
from .variants import ALL, DETERMINISTIC, NIVMF, each, el_nivmf


@pytest.fixture
def embeddings():
    torch.manual_seed(0)
    return 7 * torch.randn(20, 16)


def packed(dim: int = 16, count: int = 4) -> torch.Tensor:
    loc = references.unit(count, dim, dtype=torch.float32)
    return pack_nivmf(loc, 1 + 5 * torch.rand(count, dim, generator=torch.Generator().manual_seed(1)))


@each(ALL)
def test_is_a_base_distance_that_keeps_norms_and_is_not_inverted(make, embeddings):
    distance = make()
    assert isinstance(distance, BaseDistance)
    assert not distance.normalize_embeddings
    assert not distance.is_inverted
    values, longer = distance(embeddings, embeddings), distance(3 * embeddings, embeddings)
    assert torch.allclose(values, longer) == isinstance(distance, NivMFDistance), "d_nivMF uses directions of queries"


@each(ALL)
def test_pairwise_is_the_diagonal(make, embeddings):
    """Samples are the same after the same seed."""
    distance, queries = make(), embeddings[:4]
    for refs in (embeddings[4:8], packed()) if make in NIVMF.values() else (embeddings[4:8],):
        torch.manual_seed(3)
        matrix = distance(queries, refs)
        torch.manual_seed(3)
        torch.testing.assert_close(distance.pairwise_distance(queries, refs), matrix.diagonal())


def test_stats_of_packed_references_are_their_concentrations(embeddings):
    distance = NivMFDistance("exact", collect_stats=True)
    refs = packed()
    distance(embeddings, refs)
    expected = (refs[:, :16] * refs[:, 16:]).norm(dim=1).mean().item()
    assert distance.initial_avg_ref_norm == pytest.approx(expected)


@each(ALL)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(make, dtype, embeddings):
    half = embeddings.to(dtype)
    torch.manual_seed(0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        values = make()(half, half)
    torch.manual_seed(0)
    torch.testing.assert_close(values, make()(half.float(), half.float()))  # the same dtype, too


@each(DETERMINISTIC)
def test_gradients(make):
    torch.manual_seed(0)
    queries = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    refs = (4 * torch.randn(2, 5, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(make(), (queries, refs), fast_mode=True)


def test_bad_options():
    for option in ({"normalize_embeddings": True}, {"is_inverted": True}, {"power": 2}, {"p": 1}):
        with pytest.raises(ValueError, match=next(iter(option))):  # it would lose the norm
            PPKDistance(**option)
    with pytest.raises(ValueError, match=r"gamma must be a positive number, got 0\.0"):
        PPKDistance(0.0)
    for make in (KLDistance, NivMFDistance, lambda option: el_nivmf(option, "exact")):
        with pytest.raises(ValueError, match="got 'both'"):
            make("both")
    with pytest.raises(ValueError, match="n_samples must be an integer of at least 1"):
        el_nivmf("monte_carlo", "exact", n_samples=2.5)
    with pytest.raises(ValueError, match="needs normalizer=\"exact\", got 'paper'"):
        el_nivmf("second_order", "paper")


def test_bad_shapes():
    with pytest.raises(ValueError, match="2D"):
        PPKDistance()(torch.ones(3))
    with pytest.raises(ValueError, match="queries have width 4, so references must have 4 or 8, got 6"):
        NivMFDistance()(torch.ones(3, 4), torch.ones(2, 6))
    with pytest.raises(ValueError, match="width 4"):
        PPKDistance().pairwise_distance(torch.ones(3, 4), torch.ones(3, 5))


def test_packing_checks_what_it_packs():
    loc = references.unit(3, 4)
    with pytest.raises(ValueError, match=r"row 1 is \[1.0, 0.0"):
        pack_nivmf(loc, torch.tensor([[1.0, 1, 1, 1], [1, 0, 1, 1], [1, 1, 1, 1]], dtype=torch.float64))
    with pytest.raises(ValueError, match=r"\(3, 5\) and \(3, 4\)"):
        pack_nivmf(loc, torch.ones(3, 5))
    with pytest.raises(ValueError, match="positive and finite, row 0"):
        NivMFDistance()(torch.ones(1, 4), -torch.ones(1, 8))
    loc[2] = 0
    with pytest.raises(ValueError, match="directions must be finite and not zero, row 2"):
        pack_nivmf(loc, torch.ones(3, 4, dtype=torch.float64))
