r"""Densities and expected likelihoods of non-isotropic von Mises-Fisher distributions, by two matrix products.

For a proxy with direction μ and K = diag(κ_1 … κ_M), with κ̃ = ‖Kμ‖,

    log ρ(x) = log C_M(κ̃) + log D + ⟨x, K²μ⟩/‖Kx‖,
    log D = Σ log κ_m − log κ̃           normalizer="paper": a heuristic, ρ does not integrate to one
    log D = Σ log κ_m − M·log‖Kx‖       normalizer="exact": the Jacobian of x ↦ Kx/‖Kx‖, ρ integrates to one
    log D = 0                           normalizer="none", of which the paper reports a loss of accuracy

⟨x, K²μ⟩ = X·(W∘μ)ᵀ and ‖Kx‖² = (X∘X)·Wᵀ with W = κ² give all pairs at once, where X holds images or samples.
All values are relative to the uniform density on the sphere: add log C_M(0) for the density itself.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..checks import check_option
from .pairing import Pairing, squared_norm
from .vmf import normalizer_change, relative_log_normalizer_of_square, second_moment_terms

NORMALIZERS = ("exact", "paper", "none")


@dataclass(frozen=True)
class NivMFTerms:
    """The terms of log ρ(x) that do not depend on x, for a batch of nivMF distributions of shape (...).

    g = 1 without the exact normalizer. With the exact one g is the geometric mean of κ: Σ log κ_m and −M·log‖Kx‖ nearly
    cancel, and with K/g in place of K they do so before anything is rounded.
    """

    direction: Tensor  # vectors p of any length, (..., M)
    weight: Tensor  # W = (κ/g)², (..., M)
    pull: Tensor  # W∘p, (..., M)
    inverse_length: Tensor  # g/‖p‖, so that K²μ = g·pull·inverse_length, (...)
    pull_squared: Tensor  # ‖K²μ/g‖², (...)
    resultant: Tensor  # κ̃², (...)
    trace: Tensor  # tr W, (...)
    constant: Tensor  # the part of the log-density that does not depend on x, (...)
    jacobian: float  # the factor of log‖Kx‖²: −M/2, or 0 without the exact normalizer


def nivmf_terms(
    direction: Tensor, log_concentration: Tensor, normalizer: str, log_normalizer: str = "exact"
) -> NivMFTerms:
    """Prepare proxies for comparison: `direction` (..., M) of any positive length, log κ_m of the same shape.

    `log_normalizer` is the `method` of log C_M(κ̃).
    """
    check_option("normalizer", normalizer, NORMALIZERS)
    dim, exact = direction.shape[-1], normalizer == "exact"
    log_mean = log_concentration.mean(-1) if exact else None
    relative = log_concentration if log_mean is None else log_concentration - log_mean.unsqueeze(-1)
    weight, pull, length_squared, resultant, trace, pull_squared = _ClassSums.apply(direction, relative)
    inverse_squared = 1 / length_squared if log_mean is None else torch.exp(2 * log_mean) / length_squared
    resultant = resultant * inverse_squared  # κ̃²
    constant = relative_log_normalizer_of_square(resultant, dim, log_normalizer)
    if normalizer == "paper":
        constant = constant + log_concentration.sum(-1) - 0.5 * torch.log(resultant)
    return NivMFTerms(
        direction=direction,
        weight=weight,
        pull=pull,
        inverse_length=torch.sqrt(inverse_squared),
        pull_squared=pull_squared * inverse_squared,
        resultant=resultant,
        trace=trace,
        constant=constant,
        jacobian=-0.5 * dim if exact else 0.0,
    )


def relative_nivmf_log_density(points: Tensor, terms: NivMFTerms, pairing: Pairing) -> Tensor:
    """log ρ(x) − log C_M(0) at unit vectors x (..., M)."""
    return _exponent(points, terms, pairing, 1.0) + terms.constant


def monte_carlo_log_likelihood(
    samples: Tensor, terms: NivMFTerms, pairing: Pairing, temperature: Tensor | float = 1.0
) -> Tensor:
    """log (1/N)·Σ_i ρ(z_i)^{1/t} from samples (N, B, M) of the images' vMFs."""
    exponent = _exponent(samples, terms, pairing, temperature)
    return torch.logsumexp(exponent, dim=0) + (terms.constant / temperature - math.log(samples.shape[0]))


def analytic_log_likelihood(
    query: Tensor, terms: NivMFTerms, pairing: Pairing, temperature: Tensor | float = 1.0
) -> Tensor:
    r"""log E[ρ(x)^{1/t}] for x ~ vMF with natural parameter z = `query`, by a closed-form approximation.

    ‖Kx‖² hardly varies in high dimension and is replaced by its mean q = α·(tr K² + β·Σ κ_m²z_m²), where
    E[xxᵀ] = α(I + βzzᵀ). What remains is the vMF's moment-generating function at a/(t√q), a = K²μ:

        log E e^{⟨x,a⟩/(t√q)} = r(‖z‖) − r(‖z + a/(t√q)‖).

    Exact for K = c·I only. ExpectedLikelihoodNivMFDistance states the error for other K.
    """
    dim = query.shape[-1]
    query_squared = squared_norm(query)
    alpha, beta = second_moment_terms(query_squared, dim)
    mean_squared = pairing.per_query(alpha) * terms.trace
    inner = (torch.sqrt(alpha) * torch.sqrt(beta)).unsqueeze(-1) * query  # no longer than 1 however long z is
    mean_squared = mean_squared + pairing.product(inner * inner, terms.weight)  # q
    inverse_root = torch.rsqrt(mean_squared)
    linear = pairing.product(query, terms.pull) * (2 * terms.inverse_length / temperature)
    delta = inverse_root * (linear + inverse_root * (terms.pull_squared / temperature**2))
    constant = terms.constant
    if terms.jacobian:
        constant = constant + terms.jacobian * torch.log(mean_squared)
    return constant / temperature - normalizer_change(pairing.per_query(query_squared), delta, dim)


def _exponent(points: Tensor, terms: NivMFTerms, pairing: Pairing, temperature: Tensor | float) -> Tensor:
    """The part of log ρ(x)/t that depends on x."""
    squared = pairing.product(points.square(), terms.weight)  # ‖Kx‖²
    numerator = pairing.product(points, terms.pull)
    jacobian = None
    if terms.jacobian:
        jacobian = terms.jacobian / torch.as_tensor(temperature, dtype=points.dtype, device=points.device)
    return _Exponent.apply(numerator, squared, terms.inverse_length / temperature, jacobian)


class _ClassSums(torch.autograd.Function):
    """(W, W∘p, Σp², ΣWp², ΣW, ΣW²p²) for W = e^{2·log κ}: one node, because these tensors are as large as the proxies.

    Autograd would read them three times as often, and memory traffic dominates a step with many classes.
    """

    @staticmethod
    def forward(direction: Tensor, log_concentration: Tensor) -> tuple[Tensor, ...]:
        weight = (2 * log_concentration).exp_()
        pull = weight * direction
        vecdot = torch.linalg.vecdot
        sums = (vecdot(direction, direction), vecdot(pull, direction), weight.sum(-1), vecdot(pull, pull))
        return weight, pull, *sums

    @staticmethod
    def setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(inputs[0], output[0], output[1])

    @staticmethod
    def backward(ctx, grad_weight, grad_pull, *grad_sums):  # type: ignore[no-untyped-def]
        direction, weight, pull = ctx.saved_tensors
        length, resultant, trace, pull_squared = (grad.unsqueeze(-1) for grad in grad_sums)
        # In place, unless the backward itself is differentiated.
        addcmul = torch.addcmul if torch.is_grad_enabled() else torch.Tensor.addcmul_
        grad_pull = addcmul(torch.addcmul(grad_pull, direction, resultant), pull, pull_squared, value=2)
        grad_direction = addcmul(addcmul(grad_pull * weight, pull, resultant), direction, length, value=2)
        grad_weight = addcmul(grad_weight + trace, grad_pull, direction)
        return grad_direction, torch.addcmul(weight.new_zeros(()), grad_weight, weight, value=2)


class _Exponent(torch.autograd.Function):
    """n/√s·scale + jacobian·log s, one node for the largest tensors of a step, (N·B, C). None omits the last term."""

    @staticmethod
    def forward(numerator: Tensor, squared: Tensor, scale: Tensor, jacobian: Tensor | None) -> Tensor:
        exponent = torch.rsqrt(squared).mul_(numerator).mul_(scale)
        return exponent if jacobian is None else exponent.add_(torch.log(squared).mul_(jacobian))

    @staticmethod
    def setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        numerator, squared, scale, jacobian = ctx.saved_tensors
        grad_numerator = grad * torch.rsqrt(squared) * scale
        by_log = grad_numerator * numerator  # the gradient of log n and log scale, and −2 times that of log s
        grad_squared, grad_jacobian = by_log * -0.5, None
        if jacobian is not None:
            grad_squared = torch.addcmul(grad_squared, grad, jacobian)
            grad_jacobian = (grad * torch.log(squared)).sum() if ctx.needs_input_grad[3] else None
        return grad_numerator, grad_squared / squared, (by_log / scale).sum_to_size(scale.shape), grad_jacobian
