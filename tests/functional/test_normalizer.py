"""log C_M, its relative form and A_M against mpmath and finite differences."""

import math

import pytest
import torch

from pml_nivmf.functional import log_vmf_normalizer, mean_resultant_length, relative_log_normalizer
from pml_nivmf.functional.vmf import normalizer_change, relative_log_normalizer_of_square, second_moment_terms

from .. import references

DIMS = (2, 3, 4, 5, 8, 16, 32, 64, 128, 512, 2048, 8192)
# 1e-3 to 1e6, the same numbers in float32 and float64. mpmath needs half a minute for 2^17 at M = 8192.
KAPPAS = [2.0**exponent for exponent in (-10, -7, -4, -1, 2, 5, 8, 11, 14, 20)]
TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-6}


@pytest.mark.parametrize("dim", DIMS)
def test_agrees_with_mpmath(dim):
    """To a relative tolerance, also where r(κ) ~ −1e-9."""
    for function, reference in (
        (relative_log_normalizer, references.relative_log_normalizer),
        (mean_resultant_length, references.mean_resultant_length),
    ):
        expected = torch.tensor([float(reference(kappa, dim)) for kappa in KAPPAS], dtype=torch.float64)
        for dtype, tolerance in TOLERANCES.items():
            values = function(torch.tensor(KAPPAS, dtype=dtype), dim)
            torch.testing.assert_close(values.double(), expected, rtol=tolerance, atol=0)


@pytest.mark.parametrize("dim", [2, 3, 7, 128, 2048])
def test_log_normalizer_is_the_definition(dim):
    for kappa in (0.0, 0.5, 30.0, 4000.0):
        value = log_vmf_normalizer(torch.tensor(kappa, dtype=torch.float64), dim).item()
        assert value == pytest.approx(float(references.log_normalizer(kappa, dim)), rel=1e-12)


@pytest.mark.parametrize("dim", [2, 16, 512])
def test_derivatives(dim):
    kappa = torch.tensor([0.0, 1e-3, 0.5, 40.0, 300.0], dtype=torch.float64, requires_grad=True)
    for function in (relative_log_normalizer, mean_resultant_length, log_vmf_normalizer):
        references.check_two_derivatives(lambda k, f=function: f(k, dim), kappa)


def test_no_float64_is_made_from_float32():
    """Some devices have no float64: neither the forward nor the backward may create such a tensor."""
    seen = set()

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            seen.update(t.dtype for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, torch.Tensor))
            return result

    kappa = torch.tensor([0.0, 3.0, 1e5], requires_grad=True)
    with Watch():
        for dim in (2, 512):
            (relative_log_normalizer(kappa, dim) + mean_resultant_length(kappa, dim)).sum().backward()
    assert torch.float64 not in seen
    assert torch.float32 in seen


@pytest.mark.parametrize("dim", [2, 3, 16, 64, 512])
def test_slope_of_the_mean_keeps_its_digits_in_float32(dim):
    """R_{ν+1} − R_ν would lose everything at κ ≫ M."""
    for ratio in (0.01, 1.0, 4.0, 100.0, 1e4):
        kappa = torch.tensor(ratio * dim, requires_grad=True)
        (slope,) = torch.autograd.grad(mean_resultant_length(kappa, dim), kappa)
        expected = references.slope_of_mean_resultant_length(kappa.item(), dim)
        # A′ = R + 2xR′ is itself a difference of two terms of size 1/κ.
        assert slope.item() == pytest.approx(expected, rel=1e-4, abs=1e-6 / kappa.item())


@pytest.mark.parametrize("dim", [2, 5, 64, 512])
def test_change_is_a_difference_without_cancellation(dim):
    base = torch.tensor((4.0 * dim) ** 2)
    delta = torch.tensor([1.0, 100.0, 1e4])
    expected = [
        references.relative_log_normalizer(math.sqrt(base.item() + d), dim)
        - references.relative_log_normalizer(math.sqrt(base.item()), dim)
        for d in delta.tolist()
    ]
    expected = torch.tensor([float(change) for change in expected])
    torch.testing.assert_close(normalizer_change(base, delta, dim), expected, rtol=1e-5, atol=0)


def test_change_differentiates_in_both_arguments():
    base = torch.tensor([[0.0], [1.0], [900.0]], dtype=torch.float64, requires_grad=True)
    delta = torch.tensor([0.0, 1e-3, 4.0, 1e4], dtype=torch.float64, requires_grad=True)
    for dim in (2, 5, 64):
        references.check_two_derivatives(lambda b, d, m=dim: normalizer_change(b, d, m), base, delta)


def test_squares_that_rounding_makes_negative():
    """‖z + p‖² for p = −z comes out as ±1e5 in float32 if ‖z‖ = 1e6: no NaN, a value close to r(0) − r(‖z‖)."""
    base = torch.tensor([1.0, 1e4, 1e12], requires_grad=True)
    for dim in (2, 16, 512):
        value = normalizer_change(base, -base * (1 + 2e-7), dim)
        expected = [-float(references.relative_log_normalizer(k, dim)) for k in (1.0, 1e2, 1e6)]
        torch.testing.assert_close(value, torch.tensor(expected), rtol=1e-5, atol=1e-2)
        (gradient,) = torch.autograd.grad(value.sum(), base, retain_graph=True)
        (again,) = torch.autograd.grad(value.sum(), base, create_graph=True)
        assert torch.isfinite(gradient).all()
        torch.testing.assert_close(gradient, again, rtol=1e-3, atol=1e-6)


def test_second_moment_has_trace_one_and_the_known_variance():
    for dim in (2, 3, 64):
        for kappa in (0.3, 20.0):
            alpha, beta = second_moment_terms(torch.tensor(kappa**2, dtype=torch.float64), dim)
            mean = float(references.mean_resultant_length(kappa, dim))
            assert alpha.item() == pytest.approx(mean / kappa, rel=1e-12)
            assert (alpha * (1 + kappa**2 * beta)).item() == pytest.approx(1 - (dim - 1) * mean / kappa, rel=1e-10)


def test_paper_fits():
    kappa = torch.tensor([0.0, 10.0, 100.0])
    for dim in (128, 512):
        torch.testing.assert_close(log_vmf_normalizer(kappa, dim, method="paper"), references.paper_fit(kappa, dim))
    with pytest.raises(ValueError, match="got 127"):
        log_vmf_normalizer(kappa, 127, method="paper")


def test_bad_arguments():
    with pytest.raises(ValueError, match="got 'quick'"):
        log_vmf_normalizer(torch.ones(1), 128, method="quick")
    with pytest.raises(ValueError, match="at least 2, got 1"):
        relative_log_normalizer(torch.ones(1), 1)
    with pytest.raises(TypeError, match="float16"):
        relative_log_normalizer_of_square(torch.ones(1, dtype=torch.float16), 8)
