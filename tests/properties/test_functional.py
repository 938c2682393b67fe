"""The vMF's normalizer and samples at any dimension and concentration."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from pml_nivmf.functional import log_vmf_normalizer, mean_resultant_length, relative_log_normalizer
from pml_nivmf.functional.sampling import sample_vmf

from .strategies import FLOATS, assert_finite, bounded, embeddings

DIMENSIONS = st.integers(2, 3000)
POWERS = st.lists(st.floats(-30, 30), min_size=1, max_size=8)


@bounded(60)
@given(dim=DIMENSIONS, powers=POWERS, dtype=st.sampled_from(FLOATS))
def test_normalizer_and_mean_length(dim, powers, dtype):
    kappa = torch.tensor([0.0, *(10.0**power for power in sorted(powers))], dtype=torch.float64)
    kappa = kappa[kappa < torch.finfo(dtype).max].to(dtype).requires_grad_()
    lengths, relative = mean_resultant_length(kappa, dim), relative_log_normalizer(kappa, dim)
    for values in (log_vmf_normalizer(kappa, dim), relative, lengths):
        (slope,) = torch.autograd.grad(values.sum(), kappa, create_graph=True)
        assert_finite(values, slope, *torch.autograd.grad(slope.sum(), kappa, retain_graph=True))
        assert values.dtype == dtype
    assert lengths[0] == relative[0] == 0
    assert ((lengths >= 0) & (lengths <= 1)).all()
    assert (lengths.diff() >= -1e-6).all(), "A grows with κ"
    assert (relative.diff() <= 1e-6).all(), "log C falls with κ"
    slope = torch.autograd.grad(relative.sum(), kappa)[0]
    torch.testing.assert_close(slope, -lengths.detach(), rtol=2e-2 if dtype.itemsize == 2 else 1e-5, atol=1e-5)


@bounded(40)
@given(
    natural=embeddings(exponents=(-30, 18)), draws=st.integers(1, 5), antithetic=st.booleans(), seed=st.integers(0, 9)
)
def test_samples_are_unit_vectors_with_finite_gradients(natural, draws, antithetic, seed):
    torch.manual_seed(seed)
    if not torch.isfinite(natural).all():  # float16 holds nothing beyond 65504
        return
    natural.requires_grad_()
    samples = sample_vmf(natural, (draws,), antithetic=antithetic)
    assert samples.shape == (draws, *natural.shape)
    assert samples.dtype == natural.dtype
    lengths = samples.double().norm(dim=-1)
    assert (lengths - 1).abs().max() < (2e-2 if natural.dtype.itemsize == 2 else 1e-5)
    (gradient,) = torch.autograd.grad((samples * torch.randn_like(samples)).sum(), natural)
    assert_finite(gradient)
