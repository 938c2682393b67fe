"""Every distance against an independent numerical value."""

import itertools
import math
from functools import partial

import pytest
import torch

from pml_nivmf.distances import (
    BhattacharyyaDistance,
    ExpectedLikelihoodDistance,
    KLDistance,
    NivMFDistance,
    PPKDistance,
    pack_nivmf,
)
from pml_nivmf.distributions import NonIsotropicVonMisesFisher, VonMisesFisher

from .. import references
from .variants import el_nivmf


def vectors(count: int, dim: int, norms: tuple[float, ...], seed: int = 0) -> torch.Tensor:
    lengths = torch.tensor(norms, dtype=torch.float64).repeat(count)[:count]
    return references.unit(count, dim, seed=seed) * lengths.unsqueeze(-1)


@pytest.mark.parametrize("gamma", [0.25, 1.0, 2.0])
def test_ppk_by_quadrature(gamma):
    points, weights = references.sphere_rule()
    queries, refs = vectors(3, 3, (0.0, 2.0, 30.0)), vectors(2, 3, (5.0, 12.0), seed=1)
    for z, p in itertools.product(queries, refs):
        kernel = (torch.exp(gamma * (log_density(z, points) + log_density(p, points))) * weights).sum()
        assert PPKDistance(gamma)(z[None], p[None]).item() == pytest.approx(-kernel.log().item(), abs=1e-9)


def log_density(natural: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    return float(references.log_normalizer(natural.norm().item(), 3)) + points @ natural


@pytest.mark.parametrize("dim", [128, 512])
@pytest.mark.parametrize("distance", [ExpectedLikelihoodDistance, BhattacharyyaDistance])
def test_ppk_with_the_papers_fits(distance, dim):
    constant, linear, quadratic = {128: (127, -0.01909, -0.003355), 512: (868, -0.0002662, -0.0009685)}[dim]
    queries, refs = vectors(3, dim, (0.0, 5.0, 40.0)), vectors(2, dim, (6.0, 20.0), seed=1)
    fitted = distance(log_normalizer="paper")
    for z, p in itertools.product(queries, refs):
        logs = [constant + linear * k + quadratic * k**2 for k in (z.norm(), p.norm(), fitted.gamma * (z + p).norm())]
        expected = logs[2] - fitted.gamma * (logs[0] + logs[1])
        torch.testing.assert_close(fitted(z[None], p[None]).squeeze(), expected, rtol=1e-9, atol=1e-6)
    zero = torch.zeros(1, dim, dtype=torch.float64, requires_grad=True)
    fitted(zero, refs).sum().backward()
    assert zero.grad.isfinite().all()
    with pytest.raises(ValueError, match="dim 128 and 512 only, got 64"):
        fitted(torch.ones(1, 64), torch.ones(1, 64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [64, 512, 2048])
def test_high_dimension_by_mpmath(dim, dtype):
    queries = vectors(3, dim, (0.2, 0.1 * dim, 4.0 * dim)).to(dtype)
    refs = vectors(2, dim, (16.0, 0.5 * dim), seed=1).to(dtype)
    tolerance = {"rel": 1e-10} if dtype == torch.float64 else {"rel": 2e-6, "abs": 2e-4}
    formulas = {
        ExpectedLikelihoodDistance(): partial(references.ppk, gamma=1.0),
        BhattacharyyaDistance(): partial(references.ppk, gamma=0.5),
        PPKDistance(2.0): partial(references.ppk, gamma=2.0),
        KLDistance("exact"): references.kl,
        KLDistance("paper"): partial(references.kl, form="paper"),
    }
    for distance, formula in formulas.items():
        pairs = itertools.product(queries.double().numpy(), refs.double().numpy())
        expected = [formula(z, p) for z, p in pairs]
        assert distance(queries, refs).flatten().tolist() == pytest.approx(expected, **tolerance)


@pytest.mark.parametrize("normalizer", ["exact", "paper"])
def test_nivmf_is_the_negative_log_density(normalizer):
    queries, loc = vectors(4, 6, (0.5, 10.0)), references.unit(3, 6, seed=1)
    concentration = 0.5 + 5 * torch.rand(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    values = NivMFDistance(normalizer)(queries, pack_nivmf(loc, concentration))
    rho = NonIsotropicVonMisesFisher(loc, concentration, normalizer=normalizer)
    directions = queries / queries.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(values, -rho.log_prob(directions.unsqueeze(1)))


@pytest.mark.parametrize("normalizer", ["exact", "paper"])
def test_el_nivmf_by_quadrature(normalizer):
    """Monte-Carlo on S² converges to the integral of the two densities."""
    torch.manual_seed(0)
    points, weights = references.sphere_rule(300)
    z = vectors(1, 3, (4.0,))
    loc, concentration = references.unit(1, 3, seed=1), torch.tensor([[1.0, 2.0, 5.0]], dtype=torch.float64)
    rho = NonIsotropicVonMisesFisher(loc[0], concentration[0], normalizer=normalizer)
    integral = ((log_density(z[0], points) + rho.log_prob(points)).exp() * weights).sum()
    distance = el_nivmf("monte_carlo", normalizer, n_samples=400_000)
    assert distance(z, pack_nivmf(loc, concentration)).item() == pytest.approx(-integral.log().item(), abs=5e-3)


def isotropic(dim: int, kappa: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Proxies with K = c·I: packed, as natural parameters, and the paper normalizer's extra (M−1)·log c."""
    loc = references.unit(4, dim, seed=1)
    concentration = kappa * torch.tensor([0.5, 0.8, 1.0, 1.5], dtype=torch.float64).unsqueeze(-1)
    extra = (dim - 1) * concentration.log().squeeze(-1)
    return pack_nivmf(loc, concentration), concentration * loc, extra


@pytest.mark.parametrize("dim", [2, 3, 64, 512])
@pytest.mark.parametrize(
    ("estimator", "normalizer"), [("analytic", "exact"), ("analytic", "paper"), ("second_order", "exact")]
)
def test_closed_forms_are_exact_for_isotropic_proxies(dim, estimator, normalizer):
    packed, natural, extra = isotropic(dim, 10.0)
    z = vectors(5, dim, (0.0, 0.3, 1.0 * dim, 4.0 * dim))
    values = el_nivmf(estimator, normalizer)(z, packed)
    expected = ExpectedLikelihoodDistance()(z, natural) - (extra if normalizer == "paper" else 0)
    torch.testing.assert_close(values, expected, rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize(("antithetic", "normalizer"), [(False, "exact"), (True, "paper")])
def test_monte_carlo_converges_to_the_closed_form(antithetic, normalizer):
    """The error shrinks like 1/√N: sixteen times the samples, a quarter of the error."""
    torch.manual_seed(0)
    packed, natural, extra = isotropic(64, 6.0)
    z = vectors(4, 64, (64.0,))
    expected = ExpectedLikelihoodDistance()(z, natural) - (extra if normalizer == "paper" else 0)

    def error(n_samples: int) -> float:
        distance = el_nivmf("monte_carlo", normalizer, n_samples, antithetic=antithetic)
        errors = torch.stack([distance(z, packed) - expected for _ in range(20)])
        return errors.square().mean().sqrt().item()

    errors = [error(n) for n in (16, 256, 4096)]
    assert errors[-1] < 0.02
    for more, less in itertools.pairwise(errors):
        assert 3 < more / less < 5.4


@pytest.mark.parametrize(("dim", "kappa_z"), [(64, 0.1), (64, 4.0), (128, 1.0), (512, 0.1), (512, 4.0)])
def test_analytic_accuracy_for_anisotropic_proxies(dim, kappa_z):
    """normalizer="paper", κ_p = M/16, CV(κ) = 0.3: centred error under 3% of the spread over proxies."""
    loc, concentration = references.unit(12, dim, seed=1), references.uneven(12, dim, dim / 16, 0.3)
    z = kappa_z * dim * references.unit(dim)
    integral, error = references.tilted_importance_sampling(z, loc, concentration, draws=4000)
    length = (concentration * loc).norm(dim=-1)
    log_c = torch.tensor([float(references.log_normalizer(k, dim)) for k in length.tolist()], dtype=torch.float64)
    expected = -(integral + log_c + concentration.log().sum(-1) - length.log())
    difference = el_nivmf("analytic", "paper")(z[None], pack_nivmf(loc, concentration))[0] - expected
    assert error.max() < 0.003 * expected.std(), "the reference itself must be ten times better than the bound"
    assert (difference - difference.mean()).abs().max() < 0.03 * expected.std()


@pytest.mark.parametrize(("dim", "kappa_z"), [(64, 0.25), (128, 0.1), (128, 1.0), (128, 4.0), (512, 0.25), (512, 4.0)])
def test_second_order_accuracy_for_anisotropic_proxies(dim, kappa_z):
    """normalizer="exact", κ_p = 16, CV(κ) = 0.1: centred error under 5% of the spread, the closed form has twice it."""
    loc, concentration = references.unit(12, dim, seed=1), references.uneven(12, dim, 16.0, 0.1)
    z = kappa_z * dim * references.unit(dim)
    integral, error = references.tilted_importance_sampling(z, loc, concentration, draws=2000, exact=True)
    length = (concentration * loc).norm(dim=-1)
    log_c = torch.tensor([float(references.log_normalizer(k, dim)) for k in length.tolist()], dtype=torch.float64)
    expected = -(integral + log_c)
    assert error.max() < 0.005 * expected.std(), "the reference itself must be ten times better than the bound"
    bounds = {}
    for estimator in ("second_order", "analytic"):
        difference = el_nivmf(estimator, "exact")(z[None], pack_nivmf(loc, concentration))[0] - expected
        bounds[estimator] = (difference - difference.mean()).abs().max() / expected.std()
    assert bounds["second_order"] < 0.05
    assert bounds["analytic"] > 2 * bounds["second_order"]


@pytest.mark.parametrize("method", ["exact", "paper"])
@pytest.mark.parametrize("normalizer", ["exact", "paper", "none"])
def test_nivmf_distances_with_the_papers_fits_and_without_a_determinant(normalizer, method):
    """Options change the terms of log ρ that do not depend on x, so that all estimators change by the same."""
    dim, z = 128, vectors(3, 128, (5.0, 40.0))
    loc, concentration = references.unit(4, dim, seed=1), references.uneven(4, dim, 12.0, 0.2)
    length = (concentration * loc).norm(dim=-1)
    log_c = 127 - 0.01909 * length - 0.003355 * length**2
    if method == "exact":
        log_c = torch.tensor([float(references.log_normalizer(k, dim)) for k in length.tolist()], dtype=torch.float64)
    stretched = concentration * (z / z.norm(dim=-1, keepdim=True)).unsqueeze(1)
    log_d = {"paper": -length.log(), "exact": -dim * stretched.norm(dim=-1).log(), "none": -concentration.log().sum(-1)}
    log_d = concentration.log().sum(-1) + log_d[normalizer]
    expected = -(log_c + log_d + length * torch.cosine_similarity(stretched, concentration * loc, dim=-1))
    packed, options = pack_nivmf(loc, concentration), {"normalizer": normalizer, "log_normalizer": method}
    points = NivMFDistance(**options)
    torch.testing.assert_close(points(z, packed), expected, rtol=1e-9, atol=1e-7)
    for estimator in ("analytic", "monte_carlo"):
        both = [
            el_nivmf(estimator, "exact" if normalizer == "exact" else "paper"),
            el_nivmf(estimator, log_normalizer=method, normalizer=normalizer),
        ]
        values = [torch.manual_seed(0) and distance(z, packed) for distance in both]
        change = expected - NivMFDistance(both[0].normalizer)(z, packed)
        torch.testing.assert_close(values[1] - values[0], change, rtol=1e-9, atol=1e-7)


def test_kl_with_the_papers_fits():
    z, p = vectors(3, 512, (3.0, 70.0)), vectors(2, 512, (18.0, 50.0), seed=1)
    fit = [868 - 0.0002662 * k - 0.0009685 * k**2 for k in (z.norm(dim=-1).unsqueeze(1), p.norm(dim=-1))]
    printed = fit[0] - fit[1] + z.norm(dim=-1).unsqueeze(1) - (z @ p.T) / z.norm(dim=-1).unsqueeze(1)
    torch.testing.assert_close(KLDistance("paper", log_normalizer="paper")(z, p), printed, rtol=1e-9, atol=1e-7)


def test_reference_sampler_agrees_with_known_moments():
    torch.manual_seed(0)
    natural = 50 * references.unit(64)
    cosine = references.sample_vmf_by_gaussians(natural, 20_000) @ natural / 50
    expected = float(references.mean_resultant_length(50.0, 64))
    assert abs(cosine.mean() - expected) < 4 * cosine.std() / math.sqrt(20_000)


def test_embedding_as_reference_is_its_vmf():
    z, refs = vectors(4, 32, (5.0, 40.0)), vectors(3, 32, (0.0, 2.0, 30.0), seed=1)
    values = el_nivmf("analytic", "exact")(z, refs)
    torch.testing.assert_close(values, ExpectedLikelihoodDistance()(z, refs), rtol=1e-9, atol=1e-9)
    points = NivMFDistance("exact")(z, refs)
    rho = VonMisesFisher(references.unit(3, 32, seed=1), refs.norm(dim=-1))
    torch.testing.assert_close(points, -rho.log_prob((z / z.norm(dim=-1, keepdim=True)).unsqueeze(1)))
