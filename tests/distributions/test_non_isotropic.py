"""NonIsotropicVonMisesFisher against quadrature on S², its isotropic case and a finite-difference Jacobian."""

import math

import pytest
import torch

from pml_nivmf.distributions import NonIsotropicVonMisesFisher, VonMisesFisher

from .. import references

CONCENTRATIONS = ([3.0, 3.0, 3.0], [1.0, 2.0, 6.0], [0.2, 5.0, 0.7], [10.0, 1.0, 4.0])


@pytest.fixture(scope="module")
def sphere():
    return references.sphere_rule(350)


def nivmf_on_the_sphere(concentration, **options):
    return NonIsotropicVonMisesFisher(references.unit(3), torch.tensor(concentration, dtype=torch.float64), **options)


@pytest.mark.parametrize("concentration", [*CONCENTRATIONS, [0.5, 3.0, 15.0]])
def test_exact_density_integrates_to_one_and_has_the_mean(concentration, sphere):
    points, weights = sphere
    loc = references.unit(2, 3)  # a batch
    nivmf = NonIsotropicVonMisesFisher(loc, torch.tensor(concentration, dtype=torch.float64))
    mass = nivmf.log_prob(points.unsqueeze(1)).exp() * weights.unsqueeze(1)
    torch.testing.assert_close(mass.sum(0), torch.ones(2, dtype=torch.float64), rtol=0, atol=1e-8)
    torch.testing.assert_close(nivmf.mean, mass.T @ points, rtol=0, atol=1e-8)


def test_paper_measure_is_the_paper_formula():
    points, weights = references.sphere_rule()
    nivmf = nivmf_on_the_sphere([1.0, 2.0, 6.0], normalizer="paper")
    loc, k = nivmf.loc, nivmf.concentration
    length = (k * loc).norm()
    cosine = torch.cosine_similarity(k * points, (k * loc).expand_as(points), dim=-1)
    expected = float(references.log_normalizer(length.item(), 3)) + k.log().sum() - length.log() + length * cosine
    torch.testing.assert_close(nivmf.log_prob(points), expected)
    assert abs((nivmf.log_prob(points).exp() @ weights).item() - 1) > 0.1, "it does not integrate to one"
    assert torch.equal(nivmf.mode, loc)
    assert not nivmf.has_rsample
    with pytest.raises(NotImplementedError, match='no samples: use "exact"'):
        nivmf.rsample()
    with pytest.raises(NotImplementedError, match="it has no mean"):
        _ = nivmf.mean


@pytest.mark.parametrize("dim", [2, 3, 16, 512])
def test_equal_concentrations_are_a_vmf(dim):
    loc, points = references.unit(4, dim), references.unit(4, dim, seed=1)
    kappa = torch.tensor([1e-3, 1.0, 50.0, 1e6], dtype=torch.float64)
    nivmf, vmf = NonIsotropicVonMisesFisher(loc, kappa.unsqueeze(-1).expand(4, dim)), VonMisesFisher(loc, kappa)
    torch.testing.assert_close(nivmf.log_prob(points), vmf.log_prob(points))
    torch.testing.assert_close(nivmf.mean, vmf.mean, rtol=1e-10, atol=1e-16)


@pytest.mark.parametrize("concentration", CONCENTRATIONS)
def test_samples_have_the_density(concentration, sphere):
    """Means of several functions over samples against quadrature with the density."""
    torch.manual_seed(0)
    points, weights = sphere
    nivmf = nivmf_on_the_sphere(concentration)
    mass = nivmf.log_prob(points).exp() * weights
    samples = nivmf.rsample((50_000,))
    for function in (lambda x: x[:, 0], lambda x: x[:, 1] * x[:, 2], lambda x: x[:, 2].abs(), nivmf.log_prob):
        values = function(samples)
        expected = (mass * function(points)).sum()
        assert abs(values.mean() - expected) < 4.5 * values.std() / math.sqrt(len(values))


def test_mean_and_samples_differentiate_in_both_parameters(sphere):
    """The gradient of E f(x) through the mean and through samples against the gradient of a quadrature."""
    torch.manual_seed(0)
    points, weights = sphere
    direction = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64, requires_grad=True)
    log_k = torch.tensor([0.1, 1.0, 0.5], dtype=torch.float64, requires_grad=True)
    nivmf = NonIsotropicVonMisesFisher(direction / direction.norm(), log_k.exp())

    def gradient(value):
        return torch.cat(torch.autograd.grad(value, [direction, log_k], retain_graph=True))

    mass = nivmf.log_prob(points).exp() * weights
    torch.testing.assert_close(gradient(nivmf.mean[1]), gradient(mass @ points[:, 1]), rtol=0, atol=1e-8)
    samples = [nivmf.rsample((2000,)) for _ in range(50)]
    gradients = torch.stack([gradient((x[:, 1] * x[:, 2]).mean()) for x in samples])
    standard_error = gradients.std(0) / math.sqrt(len(gradients))
    expected = gradient(mass @ (points[:, 1] * points[:, 2]))
    assert ((gradients.mean(0) - expected).abs() < 4.5 * standard_error).all()


def test_mode_is_the_highest_point_around():
    torch.manual_seed(0)
    dim = 32
    nivmf = NonIsotropicVonMisesFisher(references.unit(4, dim), 2 + 5 * torch.rand(4, dim, dtype=torch.float64))
    best = nivmf.log_prob(nivmf.mode)
    assert (best > nivmf.log_prob(nivmf.loc)).all()
    for size in (1e-3, 1e-2, 1e-1):
        near = nivmf.mode + size * torch.randn(200, 4, dim, dtype=torch.float64)
        assert (nivmf.log_prob(near / near.norm(dim=-1, keepdim=True)) <= best + 1e-12).all()


def test_mode_is_the_highest_point_anywhere():
    """On S², against a grid, with K so uneven that the mode is far from loc, itself a stationary point."""
    points, _ = references.sphere_rule(100)
    generator = torch.Generator().manual_seed(0)
    concentration = torch.exp(1.5 * torch.randn(30, 3, generator=generator, dtype=torch.float64))
    loc = references.unit(30, 3)
    loc[0], concentration[0] = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([4.0, 0.1, 0.1])
    nivmf = NonIsotropicVonMisesFisher(loc, concentration)
    assert (nivmf.log_prob(nivmf.mode) >= nivmf.log_prob(points.unsqueeze(1)).amax(0) - 1e-9).all()


def test_mixed_types_are_promoted():
    loc = references.unit(3, dtype=torch.float32)
    mixed = NonIsotropicVonMisesFisher(loc, torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    assert mixed.log_prob(loc.double()).dtype == torch.float64
    single = NonIsotropicVonMisesFisher(loc, torch.tensor([1, 2, 3]))
    assert single.log_prob(loc).dtype == single.mean.dtype == torch.float32
    with pytest.raises(ValueError, match=r"floating point, got torch\.int64"):
        NonIsotropicVonMisesFisher(torch.tensor([1, 0, 0]), torch.ones(3))


@pytest.mark.parametrize(("dim", "spread"), [(2, 1.0), (5, 2.0), (64, 0.5)])
def test_mean_is_the_mean_of_samples(dim, spread):
    torch.manual_seed(0)
    concentration = 5 * torch.exp(spread * torch.randn(dim, dtype=torch.float64))
    nivmf = NonIsotropicVonMisesFisher(references.unit(dim), concentration)
    samples = nivmf.rsample((20_000,))
    deviations = (nivmf.mean - samples.mean(0)) / (samples.std(0) / math.sqrt(len(samples)))
    assert deviations.abs().max() < 4.5


def test_shapes_and_expand():
    nivmf = NonIsotropicVonMisesFisher(references.unit(4, 1, 6), torch.rand(3, 6, dtype=torch.float64) + 1)
    assert nivmf.batch_shape == (4, 3)
    assert nivmf.rsample((5,)).shape == (5, 4, 3, 6)
    big = nivmf.expand((2, 4, 3))
    points = references.unit(6, seed=5)
    torch.testing.assert_close(big.log_prob(points)[1], nivmf.log_prob(points))


def test_bad_arguments_are_named():
    for concentration in ([1.0, 0.0, 1.0], [1.0, -2.0, 1.0], [1.0, float("inf"), 1.0]):
        with pytest.raises(ValueError, match="concentration"):
            nivmf_on_the_sphere(concentration)
    with pytest.raises(ValueError, match=r"\(\.\.\., 3\), got \(2,\)"):
        nivmf_on_the_sphere([1.0, 1.0])
    with pytest.raises(ValueError, match="got 'other'"):
        nivmf_on_the_sphere([1.0, 2.0, 3.0], normalizer="other")
