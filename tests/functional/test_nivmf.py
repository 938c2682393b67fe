"""The hand-written autograd functions of the nivMF against plain formulas and numerical derivatives."""

import pytest
import torch

from pml_nivmf.functional.nivmf import (
    NORMALIZERS,
    _ClassSums,
    _Exponent,
    analytic_log_likelihood,
    monte_carlo_log_likelihood,
    nivmf_terms,
    relative_nivmf_log_density,
)
from pml_nivmf.functional.nivmf_second_order import second_order_log_likelihood
from pml_nivmf.functional.pairing import CROSS, ROWWISE, unit_vectors

from .. import references


def tensor(*shape, positive=False):
    values = torch.rand(shape, dtype=torch.float64) + 0.3 if positive else torch.randn(shape, dtype=torch.float64)
    return values.requires_grad_()


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def test_class_sums():
    inputs = (tensor(3, 4), tensor(3, 4))
    weight, pull, length, resultant, trace, pull_squared = _ClassSums.apply(*inputs)
    torch.testing.assert_close(weight, torch.exp(2 * inputs[1]))
    torch.testing.assert_close(pull, weight * inputs[0])
    torch.testing.assert_close(length, inputs[0].square().sum(-1))
    torch.testing.assert_close(resultant, (pull * inputs[0]).sum(-1))
    torch.testing.assert_close(trace, weight.sum(-1))
    torch.testing.assert_close(pull_squared, pull.square().sum(-1))
    references.check_two_derivatives(_ClassSums.apply, *inputs)


@pytest.mark.parametrize("jacobian", [None, -1.5])
def test_exponent(jacobian):
    jacobian = None if jacobian is None else torch.tensor(jacobian, dtype=torch.float64, requires_grad=True)
    inputs = (tensor(3, 4), tensor(3, 4, positive=True), tensor(4, positive=True), jacobian)
    expected = inputs[0] / inputs[1].sqrt() * inputs[2] + (0 if jacobian is None else jacobian * inputs[1].log())
    torch.testing.assert_close(_Exponent.apply(*inputs), expected)
    references.check_two_derivatives(_Exponent.apply, *inputs)


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("pairing", [CROSS, ROWWISE])
def test_likelihoods_differentiate(normalizer, pairing):
    query, direction, log_k = tensor(3, 4), tensor(3, 4), tensor(3, 4)
    temperature = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)

    def analytic(z, p, k, t):
        return analytic_log_likelihood(z, nivmf_terms(p, k, normalizer), pairing, t)

    def sampled(z, p, k, t):
        samples = unit_vectors(torch.stack([z, z + 1, z - 2]))
        return monte_carlo_log_likelihood(samples, nivmf_terms(p, k, normalizer), pairing, t)

    def second_order(z, p, k, t):
        return second_order_log_likelihood(z, nivmf_terms(p, k, "exact"), pairing, t)

    for function in (analytic, sampled, second_order) if normalizer == "exact" else (analytic, sampled):
        references.check_two_derivatives(function, query, direction, log_k, temperature)


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_length_of_the_direction_does_not_matter(normalizer):
    points, direction, log_k = unit_vectors(tensor(5, 8)), tensor(3, 8), tensor(3, 8)
    values = [
        relative_nivmf_log_density(points, nivmf_terms(s * direction, log_k, normalizer), CROSS) for s in (1.0, 7.0)
    ]
    torch.testing.assert_close(*values)
