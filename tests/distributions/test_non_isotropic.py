"""NonIsotropicVonMisesFisher against quadrature on S², its isotropic case and a finite-difference Jacobian."""

import math

import pytest
import torch

from pml_nivmf.distributions import NonIsotropicVonMisesFisher, VonMisesFisher

from .. import references

CONCENTRATIONS = ([3.0, 3.0, 3.0], [1.0, 2.0, 6.0], [0.2, 5.0, 0.7], [10.0, 1.0, 4.0])


@pytest.mark.parametrize("concentration", CONCENTRATIONS)
@pytest.mark.parametrize("seed", [0, 1])
def test_exact_density_integrates_to_one(concentration, seed):
    points, weights = references.sphere_rule(400)
    nivmf = NonIsotropicVonMisesFisher(references.unit(3, seed=seed), torch.tensor(concentration, dtype=torch.float64))
    assert (nivmf.log_prob(points).exp() @ weights).item() == pytest.approx(1, abs=1e-6)


def test_paper_measure_is_the_paper_formula_and_does_not_integrate_to_one():
    points, weights = references.sphere_rule()
    loc, k = references.unit(3), torch.tensor([1.0, 2.0, 6.0], dtype=torch.float64)
    nivmf = NonIsotropicVonMisesFisher(loc, k, normalizer="paper")
    length = (k * loc).norm()
    cosine = torch.cosine_similarity(k * points, (k * loc).expand_as(points), dim=-1)
    expected = float(references.log_normalizer(length.item(), 3)) + k.log().sum() - length.log() + length * cosine
    torch.testing.assert_close(nivmf.log_prob(points), expected)
    assert abs((nivmf.log_prob(points).exp() @ weights).item() - 1) > 0.1


@pytest.mark.parametrize("dim", [2, 3, 16, 128])
def test_equal_concentrations_are_a_vmf(dim):
    loc, points = references.unit(4, dim), references.unit(4, dim, seed=1)
    kappa = torch.tensor([0.1, 1.0, 20.0, 300.0], dtype=torch.float64)
    nivmf = NonIsotropicVonMisesFisher(loc, kappa.unsqueeze(-1).expand(4, dim))
    torch.testing.assert_close(nivmf.log_prob(points), VonMisesFisher(loc, kappa).log_prob(points))


@pytest.mark.parametrize("concentration", CONCENTRATIONS)
def test_samples_have_the_density(concentration):
    """Means of several functions over samples against quadrature with the density."""
    torch.manual_seed(0)
    points, weights = references.sphere_rule(400)
    nivmf = NonIsotropicVonMisesFisher(references.unit(3), torch.tensor(concentration, dtype=torch.float64))
    mass = nivmf.log_prob(points).exp() * weights
    samples = nivmf.rsample((100_000,))
    for function in (lambda x: x[:, 0], lambda x: x[:, 1] * x[:, 2], lambda x: x[:, 2].abs(), nivmf.log_prob):
        values = function(samples)
        expected = (mass * function(points)).sum()
        assert abs(values.mean() - expected) < 4.5 * values.std() / math.sqrt(len(values))


def test_rsample_differentiates_in_both_parameters():
    """The pathwise gradient of E f(x) against finite differences of quadrature."""
    torch.manual_seed(0)
    points, weights = references.sphere_rule(300)
    direction = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64, requires_grad=True)
    log_k = torch.tensor([0.1, 1.0, 0.5], dtype=torch.float64, requires_grad=True)

    def nivmf():
        return NonIsotropicVonMisesFisher(direction / direction.norm(), log_k.exp())

    exact = ((nivmf().log_prob(points).exp() * weights) * points[:, 1] * points[:, 2]).sum()
    expected = torch.cat(torch.autograd.grad(exact, [direction, log_k]))
    gradients = []
    for _ in range(100):
        samples = nivmf().rsample((2000,))
        estimate = (samples[:, 1] * samples[:, 2]).mean()
        gradients.append(torch.cat(torch.autograd.grad(estimate, [direction, log_k])))
    gradients = torch.stack(gradients)
    standard_error = gradients.std(0) / math.sqrt(len(gradients))
    assert ((gradients.mean(0) - expected).abs() < 4.5 * standard_error).all()


@pytest.mark.parametrize("dim", [3, 5, 32])
def test_mode_is_the_highest_point_around(dim):
    torch.manual_seed(0)
    nivmf = NonIsotropicVonMisesFisher(references.unit(4, dim), 2 + 5 * torch.rand(4, dim, dtype=torch.float64))
    best = nivmf.log_prob(nivmf.mode)
    assert (best > nivmf.log_prob(nivmf.loc)).all()
    for size in (1e-3, 1e-2, 1e-1):
        near = nivmf.mode + size * torch.randn(200, 4, dim, dtype=torch.float64)
        assert (nivmf.log_prob(near / near.norm(dim=-1, keepdim=True)) <= best + 1e-12).all()


def test_mode_is_the_highest_point_anywhere():
    """On S², against a fine grid, with K so uneven that the mode is far from loc, itself a stationary point."""
    points, _ = references.sphere_rule(150)
    generator = torch.Generator().manual_seed(0)
    cases = [(torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64), torch.tensor([4.0, 0.1, 0.1], dtype=torch.float64))]
    for seed in range(30):
        concentration = torch.exp(1.5 * torch.randn(3, generator=generator, dtype=torch.float64))
        cases.append((references.unit(3, seed=seed), concentration))
    for loc, concentration in cases:
        nivmf = NonIsotropicVonMisesFisher(loc, concentration)
        assert nivmf.log_prob(nivmf.mode) >= nivmf.log_prob(points).max() - 1e-9


def test_mixed_types_are_promoted():
    loc = references.unit(3, dtype=torch.float32)
    mixed = NonIsotropicVonMisesFisher(loc, torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    assert mixed.log_prob(loc.double()).dtype == torch.float64
    assert NonIsotropicVonMisesFisher(loc, torch.tensor([1, 2, 3])).log_prob(loc).dtype == torch.float32
    with pytest.raises(ValueError, match=r"floating point, got torch\.int64"):
        NonIsotropicVonMisesFisher(torch.tensor([1, 0, 0]), torch.ones(3))


def test_paper_mode_is_loc_and_mean_is_refused():
    loc, k = references.unit(3), torch.tensor([1.0, 2.0, 6.0], dtype=torch.float64)
    paper = NonIsotropicVonMisesFisher(loc, k, normalizer="paper")
    assert torch.equal(paper.mode, loc)
    with pytest.raises(NotImplementedError, match="it has no mean"):
        _ = paper.mean


@pytest.mark.parametrize("concentration", [*CONCENTRATIONS, [0.5, 3.0, 15.0]])
def test_mean_by_quadrature_on_the_sphere(concentration):
    points, weights = references.sphere_rule(400)
    loc = references.unit(2, 3)  # a batch
    nivmf = NonIsotropicVonMisesFisher(loc, torch.tensor(concentration, dtype=torch.float64))
    expected = torch.einsum("pb,p,pm->bm", nivmf.log_prob(points.unsqueeze(1)).exp(), weights, points)
    total = nivmf.log_prob(points.unsqueeze(1)).exp().T @ weights
    assert (total - 1).abs().max() < 1e-8  # the reference itself is good enough
    torch.testing.assert_close(nivmf.mean, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("kappa", [1e-3, 1.0, 50.0, 1e6])
@pytest.mark.parametrize("dim", [2, 3, 16, 512])
def test_mean_of_equal_concentrations_is_the_vmf_mean(dim, kappa):
    loc = references.unit(dim)
    nivmf = NonIsotropicVonMisesFisher(loc, torch.full((dim,), kappa, dtype=torch.float64))
    expected = VonMisesFisher(loc, torch.tensor(kappa, dtype=torch.float64)).mean
    torch.testing.assert_close(nivmf.mean, expected, rtol=1e-10, atol=1e-16)


@pytest.mark.parametrize(("dim", "spread"), [(2, 1.0), (5, 2.0), (64, 0.5), (512, 0.3)])
def test_mean_is_the_mean_of_samples(dim, spread):
    torch.manual_seed(0)
    concentration = 5 * torch.exp(spread * torch.randn(dim, dtype=torch.float64))
    nivmf = NonIsotropicVonMisesFisher(references.unit(dim), concentration)
    samples = nivmf.rsample((20_000,))
    deviations = (nivmf.mean - samples.mean(0)) / (samples.std(0) / math.sqrt(len(samples)))
    assert deviations.abs().max() < 4.5


def test_mean_keeps_dtype_and_differentiates():
    loc, k = references.unit(3), torch.tensor([1.0, 2.0, 6.0], dtype=torch.float64)
    assert NonIsotropicVonMisesFisher(loc.float(), k.float()).mean.dtype == torch.float32

    def mean(direction, log_k):
        return NonIsotropicVonMisesFisher(direction / direction.norm(), log_k.exp()).mean

    assert torch.autograd.gradcheck(mean, (loc.requires_grad_(), k.log().requires_grad_()), fast_mode=True)


def test_paper_measure_cannot_be_sampled():
    nivmf = NonIsotropicVonMisesFisher(references.unit(3), torch.ones(3, dtype=torch.float64), normalizer="paper")
    assert not nivmf.has_rsample
    with pytest.raises(NotImplementedError, match='use normalizer="exact"'):
        nivmf.rsample()


def test_shapes_and_expand():
    nivmf = NonIsotropicVonMisesFisher(references.unit(4, 1, 6), torch.rand(3, 6, dtype=torch.float64) + 1)
    assert nivmf.batch_shape == (4, 3)
    assert nivmf.rsample((5,)).shape == (5, 4, 3, 6)
    big = nivmf.expand((2, 4, 3))
    points = references.unit(6, seed=5)
    torch.testing.assert_close(big.log_prob(points)[1], nivmf.log_prob(points))


@pytest.mark.parametrize(
    ("concentration", "message"),
    [
        (torch.tensor([1.0, 0.0, 1.0]), "concentration"),
        (torch.tensor([1.0, -2.0, 1.0]), "concentration"),
        (torch.tensor([1.0, float("inf"), 1.0]), "concentration"),
        (torch.ones(2), r"shape \(\.\.\., 3\), got \(2,\)"),
    ],
)
def test_bad_concentrations_are_named(concentration, message):
    with pytest.raises(ValueError, match=message):
        NonIsotropicVonMisesFisher(torch.tensor([1.0, 0.0, 0.0]), concentration)


def test_bad_normalizer():
    with pytest.raises(ValueError, match="got 'none'"):
        NonIsotropicVonMisesFisher(references.unit(3), torch.ones(3, dtype=torch.float64), normalizer="none")
