r"""The expected likelihood of the exact nivMF to second order in the spread of κ², by five matrix products.

With W = K², a = Wμ and Q = ‖Kx‖², E[ρ(x)^{1/t}] is an integral of exp(⟨z, x⟩ + ⟨x, a⟩/(t√Q) − M/(2t)·log Q). Q hardly
varies in high dimension, but the factor M/2 amplifies its variance. So Q is replaced by its mean q in √Q only, while
log Q is linearised at q. What remains is a vMF in the coordinates √D·x/‖√D·x‖ (the map that defines the nivMF), with

    D = I + λU,     U = W/w̄ − I,     w̄ = tr W/M,     λ = M·R(‖z‖)/t,     R(κ) = A_M(κ)/κ.

λ is 1/t at z = 0 and falls to 0. With s = 1 + λ(q/w̄ − 1) and y = z + a/(t√q), and up to terms that do not depend on x,

    log E[ρ^{1/t}] = r(‖z‖) − r(√(s·yᵀD⁻¹y)) − M/(2t)·log q + (M/2)·log s − ½·log det D.

This is stationary in q and λ, so that approximations of both suffice. The dependence on λ, which differs from image to
image, is interpolated between values of λ at which all pairs are a matrix product. The result is exact for K = c·I.
"""

import torch
from torch import Tensor

from .nivmf import NivMFTerms
from .pairing import Pairing, squared_norm
from .vmf import normalizer_change, second_moment_terms

_NODE = 0.4  # zᵀD⁻¹z is interpolated between λ = 0, 0.4 and 1
_LARGEST_SLOPE = 1.5  # λ grows like 1/t, but the interpolation cannot reach farther
_SMALLEST_SCALE = 0.05  # s is larger unless t < 1 and K is far from isotropic


def second_order_log_likelihood(
    query: Tensor, terms: NivMFTerms, pairing: Pairing, temperature: Tensor | float = 1.0
) -> Tensor:
    """log E[ρ(x)^{1/t}] for x ~ vMF with natural parameter z = `query`; `terms` have the exact normalizer."""
    dim, squared = query.shape[-1], squared_norm(query)
    ratio = second_moment_terms(squared, dim)[0]  # R
    slope = (dim * ratio / temperature).clamp(max=_LARGEST_SLOPE)  # λ
    mean = terms.trace / dim  # w̄
    inverse, inverse_at_node, square_sum, inverse_sum = _Inverses.apply(terms.weight, mean)
    variance = square_sum / (dim * mean**2) - 1  # tr U²/M

    gain = ratio / (dim + ratio * squared)
    first = pairing.product(gain.unsqueeze(-1) * query * query, terms.weight) / mean  # gain·zᵀWz/w̄
    fall = _outer(pairing, [torch.ones_like(slope), slope * (1 + gain * squared)], [torch.ones_like(mean), variance])
    q = (first + pairing.per_query(1 - gain * squared)) / fall  # relative to w̄
    shift = pairing.per_query(slope) * (q - 1)
    s = (1 + shift).clamp(min=_SMALLEST_SCALE)

    at_zero, at_node, at_one = _parabola(slope)
    form = pairing.product(at_node.unsqueeze(-1) * query * query, inverse_at_node)
    form = form + pairing.product(at_one.unsqueeze(-1) * query * query, inverse)
    form = mean * form + first * pairing.per_query(at_zero / gain)
    form = form - pairing.per_query((at_zero + at_node + at_one) * squared)  # zᵀ(D⁻¹ − I)z

    linear = pairing.product((2 * (1 - slope)).unsqueeze(-1) * query, terms.pull)
    linear = linear + pairing.product((2 * slope).unsqueeze(-1) * query, terms.direction) * mean
    scale = torch.rsqrt(q) * (terms.inverse_length / (torch.sqrt(mean) * temperature))
    ends = [terms.pull_squared / terms.inverse_length**2, mean * terms.resultant / terms.inverse_length**2]
    tilt = scale * torch.addcmul(linear, scale, _outer(pairing, [1 - slope, slope], ends))

    delta = shift * pairing.per_query(squared) + s * (form + tilt)
    logs = torch.log(s) - torch.log(q) / temperature
    log_det = _outer(pairing, [slope**2, slope**3, slope**4], _log_determinant(dim, mean, variance, inverse_sum))
    constant = (terms.constant - 0.5 * dim * torch.log(mean)) / temperature
    return constant + 0.5 * (dim * logs - log_det) - normalizer_change(pairing.per_query(squared), delta, dim)


def _outer(pairing: Pairing, per_query: list[Tensor], per_class: list[Tensor]) -> Tensor:
    """Σ_i of products of a value per query with a value per class."""
    return pairing.product(torch.stack(per_query, -1), torch.stack(per_class, -1))


def _parabola(slope: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """c with zᵀ(D⁻¹ − I)z = −λ·zᵀUD⁻¹z ≈ c₀·zᵀUz + c₁·zᵀ(D⁻¹ − I)z at λ = 0.4 + c₂·the same at λ = 1."""
    at_node = slope**2 * (slope - 1) / (_NODE**2 * (_NODE - 1))
    at_one = slope**2 * (slope - _NODE) / (1 - _NODE)
    return at_node * _NODE + at_one - slope, at_node, at_one


def _log_determinant(dim: int, mean: Tensor, variance: Tensor, inverse_sum: Tensor) -> list[Tensor]:
    """c with log det D ≈ c₂λ² + c₃λ³ + c₄λ⁴, from its curvature at λ = 0, and its value and slope at λ = 1."""
    curvature, value, slope = -0.5 * dim * variance, -dim * torch.log(mean), dim - mean * inverse_sum
    return [curvature, 4 * value - slope - 2 * curvature, curvature - 3 * value + slope]


class _Inverses(torch.autograd.Function):
    """(W⁻¹, D⁻¹/w̄ at λ = 0.4, tr W², tr W⁻¹): one node, because these tensors are as large as the proxies."""

    @staticmethod
    def forward(weight: Tensor, mean: Tensor) -> tuple[Tensor, ...]:
        at_node = (weight * _NODE).add_(((1 - _NODE) * mean).unsqueeze(-1)).reciprocal_()
        inverse = weight.reciprocal()
        return inverse, at_node, torch.linalg.vecdot(weight, weight), inverse.sum(-1)

    @staticmethod
    def setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(inputs[0], *output[:2])

    @staticmethod
    def backward(ctx, grad_inverse, grad_node, grad_squares, grad_sum):  # type: ignore[no-untyped-def]
        weight, inverse, at_node = ctx.saved_tensors
        # In place, unless the backward itself is differentiated.
        mul = torch.mul if torch.is_grad_enabled() else torch.Tensor.mul_
        by_node = mul(grad_node * at_node, at_node)
        by_weight = mul(mul(grad_inverse + grad_sum.unsqueeze(-1), inverse), inverse)
        by_weight = torch.addcmul(by_weight, weight, grad_squares.unsqueeze(-1), value=-2)
        return torch.add(by_node * -_NODE, by_weight, alpha=-1), (_NODE - 1) * by_node.sum(-1)
