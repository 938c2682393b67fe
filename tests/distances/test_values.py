"""Every distance against an independent numerical value."""

import itertools
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
from ..closed_form_error import relative_errors
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


@pytest.mark.parametrize(
    ("dim", "dtype", "method"),
    [
        *((dim, dtype, "exact") for dim in (64, 512, 2048) for dtype in (torch.float32, torch.float64)),
        (128, torch.float64, "paper"),
        (512, torch.float64, "paper"),
    ],
)
def test_high_dimension_by_mpmath(dim, dtype, method):
    queries = vectors(3, dim, (0.2, 0.1 * dim, 4.0 * dim)).to(dtype)
    refs = vectors(2, dim, (16.0, 0.5 * dim), seed=1).to(dtype)
    tolerance = {"rel": 1e-10} if dtype == torch.float64 else {"rel": 2e-6, "abs": 2e-4}
    options = {"log_normalizer": method}
    formulas = {
        ExpectedLikelihoodDistance(**options): partial(references.ppk, gamma=1.0),
        BhattacharyyaDistance(**options): partial(references.ppk, gamma=0.5),
        PPKDistance(2.0, **options): partial(references.ppk, gamma=2.0),
        KLDistance("exact", **options): references.kl,
        KLDistance("paper", **options): partial(references.kl, form="paper"),
    }
    for distance, formula in formulas.items():
        pairs = itertools.product(queries.double().numpy(), refs.double().numpy())
        expected = [formula(z, p, method=method) for z, p in pairs]
        assert distance(queries, refs).flatten().tolist() == pytest.approx(expected, **tolerance)


def test_the_papers_fits_have_a_gradient_at_zero():
    zero = torch.zeros(1, 128, requires_grad=True)
    ExpectedLikelihoodDistance(log_normalizer="paper")(zero, torch.ones(2, 128)).sum().backward()
    assert zero.grad.isfinite().all()


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


@pytest.mark.parametrize(("dim", "norm"), [(64, 4.0), (128, 1.0), (128, 4.0), (512, 0.25)])
def test_closed_forms_are_accurate_for_anisotropic_proxies(dim, norm):
    """CV(κ) = 0.1: the root mean square of the error, centred, relative to the spread over proxies."""
    errors, uncertainty = relative_errors(dim, 0.1, norm, count=2, classes=8)
    assert uncertainty < 0.002, "the reference itself must be better than the bounds"
    size = {key: error.square().mean().sqrt() for key, error in errors.items()}
    assert size["paper", "analytic"] < 0.003
    assert size["exact", "second_order"] < 0.02
    assert 2 * size["exact", "second_order"] < size["exact", "analytic"] < 0.2


@pytest.mark.parametrize("method", ["exact", "paper"])
@pytest.mark.parametrize("normalizer", ["exact", "paper", "none"])
def test_nivmf_distances_with_the_papers_fits_and_without_a_determinant(normalizer, method):
    """Options change the terms of log ρ that do not depend on x, so that all estimators change by the same."""
    dim, z = 128, vectors(3, 128, (5.0, 40.0))
    loc, concentration = references.unit(4, dim, seed=1), references.uneven(4, dim, 12.0, 0.2)
    length = (concentration * loc).norm(dim=-1)
    log_c = references.log_normalizers(length, dim, method)
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


def test_embedding_as_reference_is_its_vmf():
    z, refs = vectors(4, 32, (5.0, 40.0)), vectors(3, 32, (0.0, 2.0, 30.0), seed=1)
    values = el_nivmf("analytic", "exact")(z, refs)
    torch.testing.assert_close(values, ExpectedLikelihoodDistance()(z, refs), rtol=1e-9, atol=1e-9)
    points = NivMFDistance("exact")(z, refs)
    rho = VonMisesFisher(references.unit(3, 32, seed=1), refs.norm(dim=-1))
    torch.testing.assert_close(points, -rho.log_prob((z / z.norm(dim=-1, keepdim=True)).unsqueeze(1)))
