"""The numbers behind the figures that need no run, against mpmath and quadrature."""

import numpy as np
import pytest
import torch

from pml_nivmf.reports.figures import theory

from .. import references


@pytest.mark.parametrize("angle", [0.0, 60.0, 180.0])
@pytest.mark.parametrize("norm", [0.0, 30.0, 900.0])
def test_bhattacharyya(angle, norm):
    turn = np.radians(angle)
    query, proxy = np.zeros(16), np.zeros(16)
    query[:2], proxy[0] = (norm * np.cos(turn), norm * np.sin(turn)), 500.0
    ours = theory.bhattacharyya(np.array([angle]), np.array([norm]), 500.0, 16)
    assert ours.item() == pytest.approx(references.ppk(query, proxy, 0.5), abs=1e-7)


@pytest.mark.parametrize("normalizer", ["exact", "paper"])
def test_total_mass(normalizer):
    points, weights = references.sphere_rule()
    distribution = theory.nivmf((0.48, 0.36, 0.8), (5.0, 20.0, 12.0), normalizer)
    expected = float(weights @ distribution.log_prob(points.double()).exp())
    assert theory.total_mass(distribution) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("dim", [16, 128, 512])
def test_approximations_of_others_have_the_slopes_of_their_bounds(dim):
    """Kumar and Tsvetkov's slope is an upper bound of A_M; the two that Scott et al. average enclose it."""
    kappa = torch.tensor([0.1 * dim, 1.0 * dim, 4.0 * dim], dtype=torch.double, requires_grad=True)
    truth = torch.tensor([float(references.mean_resultant_length(k, dim)) for k in kappa.tolist()], dtype=torch.double)
    upper, mean = (-torch.autograd.grad(f(kappa, dim).sum(), kappa)[0] for f in (theory.kumar_tsvetkov, theory.scott))
    assert ((upper > truth) & (upper < 1.01 * truth)).all()
    half = (dim - 1) / 2
    bounds = [kappa / (half + torch.sqrt(b**2 + kappa**2)) for b in (half + 1, half)]
    assert ((bounds[0] < truth) & (truth < bounds[1])).all()
    torch.testing.assert_close(mean, (bounds[0] + bounds[1]) / 2)
    assert theory.scott(torch.zeros(1), dim) == theory.kumar_tsvetkov(torch.zeros(1), dim) == 0


def test_normalizers_are_mpmaths():
    figure = theory.draw_normalizers()
    for axes, dim in zip(figure.axes[:2], (128, 512), strict=True):
        for kappa, value in axes.lines[0].get_xydata()[::100]:
            assert value == pytest.approx(float(references.log_normalizer(kappa, dim)), rel=1e-12)
    error = figure.axes[2].lines[0].get_ydata()
    assert error[-1] > 100, "the paper's fit is far off at 4·M"
