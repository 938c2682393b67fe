"""What all distances do by themselves; tests/conformance has them inside PML's losses, miners and search."""

import pytest
import torch
from pytorch_metric_learning.distances import BaseDistance

from pml_nivmf.distances import (
    BhattacharyyaDistance,
    ExpectedLikelihoodDistance,
    ExpectedLikelihoodNivMFDistance,
    KLDistance,
    NivMFDistance,
    PPKDistance,
    pack_nivmf,
)

from .. import references

VMF = [PPKDistance, ExpectedLikelihoodDistance, BhattacharyyaDistance, KLDistance, lambda **k: KLDistance("paper", **k)]
NIVMF = [
    NivMFDistance,
    lambda **k: NivMFDistance("paper", **k),
    lambda **k: ExpectedLikelihoodNivMFDistance(estimator="analytic", **k),
    lambda **k: ExpectedLikelihoodNivMFDistance(estimator="analytic", normalizer="paper", **k),
    lambda **k: ExpectedLikelihoodNivMFDistance(n_samples=3, **k),
]
ALL = VMF + NIVMF
DETERMINISTIC = ALL[:-1]


@pytest.fixture
def batch():
    torch.manual_seed(0)
    labels = torch.arange(4).repeat_interleave(5)
    centres = 3 * torch.randn(4, 16)
    return (2 * (centres[labels] + torch.randn(20, 16))).requires_grad_(), labels


def packed(dim: int = 16, count: int = 4) -> torch.Tensor:
    loc = references.unit(count, dim, dtype=torch.float32)
    return pack_nivmf(loc, 1 + 5 * torch.rand(count, dim, generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("make", ALL)
def test_is_a_base_distance_that_keeps_norms_and_is_not_inverted(make):
    distance = make()
    assert isinstance(distance, BaseDistance)
    assert not distance.normalize_embeddings
    assert not distance.is_inverted
    assert distance.smallest_dist(torch.tensor([2.0, 1.0])) == 1


@pytest.mark.parametrize("make", DETERMINISTIC)
def test_norm_matters_or_is_documented_not_to(make, batch):
    embeddings, _ = batch
    distance = make()
    changed = not torch.allclose(distance(embeddings, embeddings), distance(3 * embeddings, embeddings))
    assert changed != isinstance(distance, NivMFDistance)


@pytest.mark.parametrize("make", DETERMINISTIC)
def test_closer_is_lower(make):
    """Turning a query away from a reference raises the distance to it."""
    reference = torch.tensor([[10.0, 0.0, 0.0]])
    angles = torch.linspace(0, 3.1, 8)
    queries = 20 * torch.stack([angles.cos(), angles.sin(), torch.zeros(8)], -1)
    values = make()(queries, reference).squeeze(1)
    assert (values.diff() > 0).all()


@pytest.mark.parametrize("make", DETERMINISTIC)
def test_pairwise_is_the_diagonal(make, batch):
    embeddings, _ = batch
    distance = make()
    queries, refs = embeddings[:10], embeddings[10:]
    torch.testing.assert_close(distance.pairwise_distance(queries, refs), distance(queries, refs).diagonal())
    if not isinstance(distance, PPKDistance | KLDistance):
        torch.testing.assert_close(
            distance.pairwise_distance(queries[:4], packed()), distance(queries[:4], packed()).diagonal()
        )


def test_monte_carlo_pairwise_is_the_diagonal_with_the_same_noise(batch):
    distance = ExpectedLikelihoodNivMFDistance(n_samples=7)
    queries = batch[0][:4]
    torch.manual_seed(3)
    matrix = distance(queries, packed())
    torch.manual_seed(3)
    torch.testing.assert_close(distance.pairwise_distance(queries, packed()), matrix.diagonal())


def test_stats_of_packed_references_are_their_concentrations(batch):
    distance = NivMFDistance(collect_stats=True)
    refs = packed()
    distance(batch[0], refs)
    expected = (refs[:, :16] * refs[:, 16:]).norm(dim=1).mean().item()
    assert distance.initial_avg_ref_norm == pytest.approx(expected)


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(make, dtype, batch):
    embeddings = batch[0].detach()
    half = embeddings.to(dtype)
    torch.manual_seed(0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        values = make()(half, half)
    torch.manual_seed(0)
    expected = make()(half.float(), half.float())
    assert values.dtype == torch.float32
    torch.testing.assert_close(values, expected)


@pytest.mark.parametrize("make", DETERMINISTIC)
def test_gradients(make):
    torch.manual_seed(0)
    queries = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    refs = (4 * torch.randn(2, 5, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(make(), (queries, refs))


@pytest.mark.parametrize("make", DETERMINISTIC)
def test_zero_vectors_are_legal(make):
    queries = torch.randn(4, 8)
    queries[1] = 0
    queries.requires_grad_()
    values = make()(queries, 5 * torch.randn(3, 8))
    values.sum().backward()
    assert torch.isfinite(values).all()
    assert torch.isfinite(queries.grad).all()
    assert queries.grad[1].norm() < 100


@pytest.mark.parametrize("option", [{"normalize_embeddings": True}, {"is_inverted": True}, {"power": 2}, {"p": 1}])
def test_options_that_would_lose_the_norm_are_refused(option):
    (name,) = option
    with pytest.raises(ValueError, match=name):
        PPKDistance(**option)


@pytest.mark.parametrize("gamma", [0.0, -1.0, float("nan")])
def test_gamma_must_be_positive(gamma):
    with pytest.raises(ValueError, match=f"gamma must be a positive number, got {gamma}"):
        PPKDistance(gamma)


def test_bad_options():
    with pytest.raises(ValueError, match="got 'both'"):
        KLDistance(form="both")
    with pytest.raises(ValueError, match="got 'quadrature'"):
        ExpectedLikelihoodNivMFDistance(estimator="quadrature")
    with pytest.raises(ValueError, match="got 'unit'"):
        NivMFDistance(normalizer="unit")
    for count in (0, -3, 2.5, True):
        with pytest.raises(ValueError, match="n_samples must be an integer of at least 1"):
            ExpectedLikelihoodNivMFDistance(n_samples=count)


def test_bad_shapes():
    with pytest.raises(ValueError, match="2D"):
        PPKDistance()(torch.ones(3))
    with pytest.raises(ValueError, match="width 4, so references must have width 4, got 8"):
        PPKDistance()(torch.ones(3, 4), torch.ones(2, 8))
    with pytest.raises(ValueError, match="width 4 or 8, got 6"):
        NivMFDistance()(torch.ones(3, 4), torch.ones(2, 6))
    with pytest.raises(ValueError, match="width 4"):
        PPKDistance().pairwise_distance(torch.ones(3, 4), torch.ones(3, 5))


def test_packing_checks_what_it_packs():
    loc = references.unit(3, 4)
    assert pack_nivmf(loc, torch.full((3, 4), 2.0, dtype=torch.float64)).shape == (3, 8)
    with pytest.raises(ValueError, match=r"row 1 is \[1.0, 0.0"):
        pack_nivmf(loc, torch.tensor([[1.0, 1, 1, 1], [1, 0, 1, 1], [1, 1, 1, 1]], dtype=torch.float64))
    with pytest.raises(ValueError, match=r"\(3, 5\) and \(3, 4\)"):
        pack_nivmf(loc, torch.ones(3, 5))
    with pytest.raises(ValueError, match="positive and finite, row 0"):
        NivMFDistance()(torch.ones(1, 4), -torch.ones(1, 8))
    for bad in (0.0, float("nan")):
        spoilt = loc.clone()
        spoilt[2] = bad
        with pytest.raises(ValueError, match="directions must be finite and not zero, row 2"):
            pack_nivmf(spoilt, torch.ones(3, 4, dtype=torch.float64))


def test_vectors_whose_square_underflows_count_as_zero():
    for make in DETERMINISTIC:
        queries = torch.full((1, 8), 1e-30, requires_grad=True)
        values = make()(queries, 5 * torch.randn(3, 8))
        values.sum().backward()
        assert torch.isfinite(values).all()
        assert torch.isfinite(queries.grad).all()
