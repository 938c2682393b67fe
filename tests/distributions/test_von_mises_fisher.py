"""VonMisesFisher against SciPy, quadrature on S² and torch.distributions' own protocol."""

import pytest
import scipy.stats
import torch
from torch.distributions import kl_divergence

from pml_nivmf.distributions import VonMisesFisher

from .. import references


@pytest.mark.parametrize(("dim", "kappa"), [(2, 1.0), (3, 10.0), (16, 0.5), (64, 20.0)])
def test_log_prob_and_entropy_agree_with_scipy(dim, kappa):
    loc, points = references.unit(dim), references.unit(20, dim, seed=1)
    ours = VonMisesFisher(loc, kappa)
    theirs = scipy.stats.vonmises_fisher(loc.numpy(), kappa)
    torch.testing.assert_close(ours.log_prob(points), torch.tensor(theirs.logpdf(points.numpy())))
    assert ours.entropy().item() == pytest.approx(float(theirs.entropy()))


@pytest.mark.parametrize("kappa", [0.0, 0.3, 5.0, 80.0])
def test_moments_by_quadrature(kappa):
    points, weights = references.sphere_rule()
    vmf = VonMisesFisher(references.unit(3), kappa)
    density = vmf.log_prob(points).exp() * weights
    assert density.sum().item() == pytest.approx(1, abs=1e-10)
    torch.testing.assert_close(density @ points, vmf.mean, atol=1e-10, rtol=0)
    assert torch.equal(vmf.mode, vmf.loc)


def test_kl_by_quadrature_and_in_high_dimension():
    points, weights = references.sphere_rule()
    p, q = VonMisesFisher(references.unit(3), 4.0), VonMisesFisher(references.unit(3, seed=1), 9.0)
    integral = (p.log_prob(points).exp() * (p.log_prob(points) - q.log_prob(points)) * weights).sum()
    assert kl_divergence(p, q).item() == pytest.approx(integral.item(), abs=1e-9)
    z, r = 300 * references.unit(512), 20 * references.unit(512, seed=1)
    high = kl_divergence(VonMisesFisher(z / z.norm(), z.norm()), VonMisesFisher(r / r.norm(), r.norm()))
    assert high.item() == pytest.approx(references.kl(z.numpy(), r.numpy()), rel=1e-9)


def test_shapes_and_expand():
    vmf = VonMisesFisher(references.unit(4, 1, 6), torch.rand(3, dtype=torch.float64))
    assert vmf.batch_shape == (4, 3)
    assert vmf.event_shape == (6,)
    assert vmf.rsample((5,)).shape == (5, 4, 3, 6)
    assert vmf.sample().requires_grad is False
    big = vmf.expand((7, 4, 3))
    assert big.batch_shape == (7, 4, 3)
    assert big.log_prob(big.rsample()).shape == (7, 4, 3)
    assert torch.equal(big.mean[2], vmf.mean)
    assert kl_divergence(vmf, VonMisesFisher(references.unit(3, 6), 2.0)).shape == (4, 3)


def test_rsample_reaches_both_parameters():
    loc = references.unit(5, 8).requires_grad_()
    concentration = torch.full((5,), 3.0, dtype=torch.float64, requires_grad=True)
    VonMisesFisher(loc, concentration).rsample((100,))[..., 0].sum().backward()
    assert loc.grad.abs().sum() > 0
    assert concentration.grad.abs().sum() > 0


def test_bad_parameters_and_points_are_named():
    loc = torch.tensor([1.0, 0.0])
    with pytest.raises(ValueError, match="loc"):
        VonMisesFisher(torch.ones(3), 1.0)
    for concentration in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="concentration"):
            VonMisesFisher(loc, concentration)
    with pytest.raises(ValueError, match="support"):
        VonMisesFisher(loc, 1.0).log_prob(torch.ones(2))


def test_half_precision():
    loc = references.unit(16, dtype=torch.float32).half()
    vmf = VonMisesFisher(loc, 20.0)
    assert vmf.rsample((3,)).dtype == vmf.log_prob(loc).dtype == kl_divergence(vmf, vmf).dtype == torch.float16
