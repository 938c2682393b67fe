"""The numbers behind the figures that need no run, against mpmath, SciPy and quadrature."""

import numpy as np
import pytest
import torch
from scipy.integrate import quad

from pml_nivmf.reports.figures import theory

from .. import references


@pytest.mark.parametrize("dim", [2, 3, 10, 128, 512])
def test_bounds_of_the_bessel_ratio(dim):
    """They hold, and are no looser than published: both are exact in the limit κ → 0."""
    order = dim / 2 - 1
    for kappa in (1e-3, 0.5, 3.0, 40.0, 700.0, 5000.0):
        exact = float(references.mean_resultant_length(kappa, dim))
        lower = theory.ratio_bound(np.array(kappa), order + 0.5, order + 1.5)
        upper = theory.ratio_bound(np.array(kappa), order, order + 2)
        assert lower <= exact * (1 + 1e-12)
        assert exact <= upper * (1 + 1e-12)
        if kappa == 1e-3:
            assert lower == pytest.approx(upper, rel=1e-6)


@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 2.0), (63.5, 64.5), (255.0, 257.0)])
def test_integral_of_a_bound(alpha, beta):
    for kappa in (0.0, 1.0, 300.0, 2000.0):
        expected = quad(lambda t: theory.ratio_bound(t, alpha, beta), 0, kappa, epsabs=1e-11)[0]
        assert theory.ratio_bound_integral(np.array(kappa), alpha, beta) == pytest.approx(expected, rel=1e-8, abs=1e-12)


@pytest.mark.parametrize("dim", [128, 512])
def test_curves_of_the_normalizer(dim):
    curves = theory.normalizer_curves(dim, np.linspace(0, 3 * dim, 7))
    expected = [float(references.log_normalizer(kappa, dim)) for kappa in curves.concentration]
    np.testing.assert_allclose(curves.exact, expected, rtol=1e-12)
    upper, lower = (curves.others[f"{side} bound (Amos 1974)"] for side in ("upper", "lower"))
    assert (upper >= curves.exact - 1e-9).all()
    assert (lower <= curves.exact + 1e-9).all()
    assert (upper - lower)[1:].min() > 1e-6
    assert (upper - lower).max() < 0.5  # nats: the fit is hundreds off
    assert np.abs(curves.others["the paper's fit"] - curves.exact).max() > 100


def test_bhattacharyya_is_mpmaths():
    angle, norm = np.array([0.0, 60.0, 180.0]), np.array([0.0, 30.0, 900.0])
    ours = theory.bhattacharyya(angle, norm, 500.0, 16)
    proxy = np.zeros(16)
    proxy[0] = 500.0
    for i, length in enumerate(norm):
        for j, turn in enumerate(np.radians(angle)):
            z = np.zeros(16)
            z[:2] = length * np.cos(turn), length * np.sin(turn)
            assert ours[i, j] == pytest.approx(references.ppk(z, proxy, 0.5), abs=1e-7)


def test_total_mass():
    points, weights = references.sphere_rule()
    for normalizer in ("exact", "paper"):
        density = theory._nivmf((0.48, 0.36, 0.8), (5.0, 20.0, 12.0), normalizer)
        expected = float((weights * torch.from_numpy(np.exp(density(points.double().numpy())))).sum())
        assert theory.total_mass(density) == pytest.approx(expected, rel=1e-6)
        if normalizer == "exact":
            assert expected == pytest.approx(1.0, rel=1e-6)
    assert theory.total_mass(theory._vmf((0.0, 0.0, 1.0), 30.0)) == pytest.approx(1.0, rel=1e-10)
