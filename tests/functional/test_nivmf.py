"""Likelihoods of the nivMF, with their hand-written autograd functions, against numerical derivatives."""

import pytest
import torch

from pml_nivmf.functional.nivmf import (
    NORMALIZERS,
    analytic_log_likelihood,
    monte_carlo_log_likelihood,
    nivmf_terms,
)
from pml_nivmf.functional.nivmf_second_order import second_order_log_likelihood
from pml_nivmf.functional.pairing import CROSS, ROWWISE, unit_vectors

from .. import references


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("pairing", [CROSS, ROWWISE])
def test_likelihoods_differentiate(normalizer, pairing):
    torch.manual_seed(0)
    query, direction, log_k = torch.randn(3, 3, 4, dtype=torch.float64).requires_grad_().unbind()
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
