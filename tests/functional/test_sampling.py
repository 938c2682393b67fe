"""Samples and their gradients against mpmath moments, SciPy's distribution and finite differences of expectations."""

import math

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch

from pml_nivmf.functional import sample_vmf
from pml_nivmf.functional.sampling import _sample_angle, _stretching_rate
from pml_nivmf.functional.vmf import second_moment_terms

from .. import references

CASES = [(2, 1.0), (3, 10.0), (16, 0.1), (128, 20.0), (512, 50.0), (512, 1000.0), (2048, 50.0)]
DRAWS = 10_000


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
    np.random.seed(0)


@pytest.mark.parametrize(("dim", "kappa"), CASES)
@pytest.mark.parametrize("antithetic", [False, True])
def test_mean_cosine(dim, kappa, antithetic):
    loc = references.unit(dim, dtype=torch.float32)
    samples = sample_vmf(kappa * loc, (DRAWS,), antithetic=antithetic)
    assert (samples.norm(dim=-1) - 1).abs().max() < 1e-5
    cosine = (samples @ loc).double()
    independent = len(cosine) // 2 if antithetic else len(cosine)  # a pair shares its angle
    expected = float(references.mean_resultant_length(kappa, dim))
    assert abs(cosine.mean() - expected) < 4 * cosine.std() / math.sqrt(independent)


@pytest.mark.parametrize(("dim", "kappa"), [(2, 1.0), (3, 10.0), (3, 200.0), (16, 0.1), (16, 30.0), (64, 20.0)])
@pytest.mark.parametrize(("antithetic", "at_once"), [(False, False), (True, False), (False, True)])
def test_same_law_as_scipy(dim, kappa, antithetic, at_once, monkeypatch):
    """Also if all proposals are drawn at once, as on an accelerator."""
    monkeypatch.setattr("pml_nivmf.functional.sampling.is_readable", lambda tensor: not at_once)
    loc = references.unit(dim)
    other = references.unit(dim, seed=1)
    theirs = scipy.stats.vonmises_fisher(loc.numpy(), kappa).rvs(5000)
    ours = sample_vmf(kappa * loc, (10_000,), antithetic=antithetic).numpy()
    assert np.isfinite(theirs).all()
    for half in (ours[:5000], ours[5000:]):  # partners of a pair lie in different halves
        for direction in (loc.numpy(), other.numpy()):  # along the mean, and across it: the tangents
            assert scipy.stats.ks_2samp(half @ direction, theirs @ direction).pvalue > 1e-3


@pytest.mark.parametrize(("dim", "kappa"), [*CASES, (2, 10.0), (128, 512.0)])
def test_mean_gradient_is_the_slope_of_the_mean(dim, kappa):
    """E dx/dν = A′·μμᵀ + A/κ·(I − μμᵀ), where differentiating accepted proposals is 44% off at (2, 1)."""
    draws = 5 * DRAWS if dim < 128 else DRAWS // 5
    along, across = torch.eye(dim, dtype=torch.float64)[:2]
    natural = (kappa * along).repeat(draws, 1).requires_grad_()
    samples = sample_vmf(natural)
    mean = float(references.mean_resultant_length(kappa, dim))
    for direction, expected in (
        (along, references.slope_of_mean_resultant_length(kappa, dim)),
        (across, mean / kappa),
    ):
        (gradient,) = torch.autograd.grad((samples @ direction).sum(), natural, retain_graph=True)
        slopes = gradient @ direction
        assert abs(slopes.mean() - expected) < 4 * slopes.std() / math.sqrt(draws)


def implicit_slope(angle: float, kappa: float, dim: int) -> float:
    """−(∂F/∂κ)/p at one angle by SciPy's adaptive quadrature."""
    mean = float(references.mean_resultant_length(kappa, dim))

    def density(t):
        return math.exp(kappa * (math.cos(t) - math.cos(angle))) * (math.sin(t) / math.sin(angle)) ** (dim - 2)

    side = (0.0, angle) if angle < math.pi / 3 else (angle, math.pi)
    value, _ = scipy.integrate.quad(lambda t: (math.cos(t) - mean) * density(t), *side, epsabs=1e-13, epsrel=1e-11)
    return math.sin(angle) * (value if side[0] == 0.0 else -value)


@pytest.mark.parametrize(("dim", "kappa"), [(2, 1.0), (3, 10.0), (16, 0.1), (16, 60.0), (64, 20.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradient_of_each_cosine(dim, kappa, dtype):
    concentration = torch.full((20,), kappa, dtype=dtype)
    angle, _, sine = _sample_angle(concentration, dim, None)
    slopes = (_stretching_rate(angle, concentration, dim) * sine**2).tolist()
    expected = [implicit_slope(a, kappa, dim) for a in angle.tolist()]
    assert slopes == pytest.approx(expected, rel=1e-7 if dtype == torch.float64 else 2e-3, abs=1e-9)


@pytest.mark.parametrize(("dim", "kappa", "antithetic"), [(2, 1.0, False), (3, 4.0, True), (8, 3.0, False)])
def test_gradient_of_an_expectation(dim, kappa, antithetic):
    """The pathwise gradient of E f(x) against the exact one for f(x) = xᵀBx, E[xxᵀ] = α(I + βννᵀ)."""
    natural = (kappa * references.unit(dim)).requires_grad_()
    matrix = torch.randn(dim, dim, dtype=torch.float64)
    matrix = matrix + matrix.T
    alpha, beta = second_moment_terms((natural * natural).sum(), dim)  # tested against mpmath in test_normalizer.py
    (expected,) = torch.autograd.grad(alpha * (matrix.trace() + beta * natural @ matrix @ natural), natural)
    gradients = []
    for _ in range(50):
        samples = sample_vmf(natural, (2000,), antithetic=antithetic)
        value = torch.einsum("ni,ij,nj->n", samples, matrix, samples).mean()
        gradients.append(torch.autograd.grad(value, natural)[0])
    gradients = torch.stack(gradients)
    standard_error = gradients.std(0) / math.sqrt(len(gradients))
    assert ((gradients.mean(0) - expected).abs() < 4.5 * standard_error + 1e-12).all()


@pytest.mark.parametrize("draws", [1, 2, 5])
def test_antithetic_draws_mirror_the_tangent(draws):
    natural = 5 * references.unit(3, 4, 6)
    samples = sample_vmf(natural, (draws,), antithetic=True)
    assert samples.shape == (draws, 3, 4, 6)
    loc = natural / natural.norm(dim=-1, keepdim=True)
    half = (draws + 1) // 2
    for first, second in zip(samples[: draws - half], samples[half:], strict=True):
        cosine = (first * loc).sum(-1, keepdim=True)
        torch.testing.assert_close(first + second, 2 * cosine * loc)


@pytest.mark.parametrize("shape", [(2,), (5, 3), (0, 3), (2, 1, 4, 7)])
@pytest.mark.parametrize("sample_shape", [(), (1,), (3, 2), (0,)])
def test_shapes(shape, sample_shape):
    natural = torch.randn(shape, requires_grad=True)
    samples = sample_vmf(natural, sample_shape)
    assert samples.shape == (*sample_shape, *shape)
    samples.sum().backward()
    assert natural.grad.shape == shape


def test_gradient_at_zero_is_that_of_the_uniform_distribution():
    """At ν = 0 dx/dν = (I − xxᵀ)/(M−1), exactly."""
    natural = torch.zeros(7, dtype=torch.float64, requires_grad=True)
    samples = sample_vmf(natural)
    weights = torch.randn(7, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((samples * weights).sum(), natural)
    x = samples.detach()
    torch.testing.assert_close(gradient, (weights - x * (x @ weights)) / 6)


def test_generator_makes_draws_repeatable():
    natural = 3 * references.unit(5, 8)
    first, second = (sample_vmf(natural, (4,), generator=torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(first, second)


def test_bad_input():
    with pytest.raises(ValueError, match=r"got \(3, 1\)"):
        sample_vmf(torch.ones(3, 1))
    with pytest.raises(ValueError, match="must be finite"):
        sample_vmf(torch.tensor([[1.0, float("nan")]]))
