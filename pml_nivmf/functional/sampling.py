r"""Batched, reparametrised sampling from von Mises-Fisher distributions on S^{M−1}.

A draw is x = cos θ·μ + sin θ·v with v uniform on the unit sphere of the tangent space at μ. The angle comes from
Wood's rejection scheme (1994) in half-angle form, tan²(θ/2) = b·g₁/g₂ with two Gamma variates: no cancellation
in sin θ, nor in 1 − cos θ at high concentration.

Gradients are exact and pathwise, for the natural parameter ν = κμ: differentiating the accepted proposal would be
biased, so the velocity of a sample comes from the continuity equation instead. With P_x = I − xxᵀ and w = cos θ

    dx/dν = P_x·[ a(w)·(I − μμᵀ) + c(w)·μμᵀ ],

    a(w) = ∫₀¹ s^{M−2}·e^{−κw(1−s)} ds                 solves  w·a′ + (M − 1 + κw)·a = 1  (turning ν),
    c(w) = (dw/dκ)/(1−w²),   dw/dκ = −(∂F/∂κ)/p(w)     is implicit in the CDF F of w      (stretching ν).

Both tend to 1/(M−1) as κ → 0, so the gradient is bounded by a constant at ν = 0, where rotating μ has gradient 1/κ.
"""

import math

import numpy as np
import torch
from torch import Tensor

from .finite import first_false, is_readable
from .pairing import at_least_float32, in_dtype_of
from .vmf import second_moment_terms

_PROPOSALS = 4  # per round: a further round costs more than unused proposals
_MAX_REJECTION_ROUNDS = 16  # at least 65% of proposals are accepted: 16 rounds fail with probability < 1e-28
_ALL_PROPOSALS = _PROPOSALS * _MAX_REJECTION_ROUNDS
_RULE = np.polynomial.legendre.leggauss(24)  # on [−1, 1]
_NODES, _WEIGHTS = ((_RULE[0] + 1) / 2).tolist(), (_RULE[1] / 2).tolist()


def sample_vmf(
    natural: Tensor,
    sample_shape: tuple[int, ...] = (),
    antithetic: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Unit vectors x ~ vMF(ν/‖ν‖, ‖ν‖), shape sample_shape + natural.shape, differentiable once in ν.

    Args:
        natural: ν = κμ, shape (..., M), M ≥ 2. ν = 0 is the uniform distribution. Half precision is computed in
            float32 and returned in its own dtype.
        sample_shape: leading shape of independent draws.
        antithetic: draw the flattened sample_shape in pairs that share the angle and have opposite tangents. Every
            draw keeps its distribution; averages over draws have less variance. An odd count leaves one unpaired.
        generator: source of randomness; torch's global one if None.
    """
    if natural.ndim == 0 or natural.shape[-1] < 2:
        raise ValueError(f"natural must have shape (..., M) with M of at least 2, got {tuple(natural.shape)}")
    draws = math.prod(sample_shape)
    flat = at_least_float32(natural).reshape(-1, natural.shape[-1])
    if torch.compiler.is_compiling() and generator is None:
        samples, angle = _draw_in_a_graph(flat.detach(), draws, antithetic)
    else:
        samples, angle = _draw(flat.detach(), draws, antithetic, generator)
    samples = _Reparametrised.apply(flat, samples, angle)
    return in_dtype_of(samples.reshape(*sample_shape, *natural.shape), natural)


def _draw(natural: Tensor, draws: int, antithetic: bool, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """(x, θ) of shapes (draws, batch, M) and (independent draws, batch); antithetic partners share θ."""
    loc, concentration = _polar(natural)
    message = "vMF concentrations must be finite: the natural parameter holds NaN, inf or a huge norm"
    if first_false(torch.isfinite(concentration), message) is not None:
        raise ValueError(message)
    independent = (draws + 1) // 2 if antithetic else draws
    angle, cosine, sine = _sample_angle(concentration.expand(independent, -1), natural.shape[-1], generator)
    samples = natural.new_empty(draws, *natural.shape)
    _place_around(loc, cosine, sine, generator, out=samples[:independent])
    if draws > independent:  # cos θ·μ − sin θ·v = 2·cos θ·μ − x
        paired = draws - independent
        twice_cosine = (2 * cosine[:paired]).unsqueeze(-1)
        torch.mul(twice_cosine, loc, out=samples[independent:]).sub_(samples[:paired])
    return samples, angle


# Rejection loops until all draws are accepted. As a custom operator it is opaque to torch.compile: no graph break, and
# the same draws as in eager mode. The tag keeps the compiler from removing or repeating it.
@torch.library.custom_op("pml_nivmf::draw_vmf", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def _draw_in_a_graph(natural: Tensor, draws: int, antithetic: bool) -> tuple[Tensor, Tensor]:
    return _draw(natural, draws, antithetic, None)


@_draw_in_a_graph.register_fake
def _shapes_of_draws(natural: Tensor, draws: int, antithetic: bool) -> tuple[Tensor, Tensor]:
    independent = (draws + 1) // 2 if antithetic else draws
    return natural.new_empty(draws, *natural.shape), natural.new_empty(independent, natural.shape[0])


class _Reparametrised(torch.autograd.Function):
    """Attaches the pathwise derivative with respect to ν (batch, M) to given samples (draws, batch, M)."""

    @staticmethod
    def forward(natural: Tensor, samples: Tensor, angle: Tensor) -> Tensor:
        return samples.view_as(samples)

    @staticmethod
    def setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(*inputs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        """Σ_i dx_i/dν·g_i, with P_x g = g − ⟨g,x⟩x and ⟨μ, P_x g⟩ = ⟨μ,g⟩ − ⟨g,x⟩·cos θ."""
        natural, samples, angle = ctx.saved_tensors
        loc, concentration = _polar(natural)
        turn = _turning_rate(angle, concentration, natural.shape[-1])
        stretch = _stretching_rate(angle, concentration, natural.shape[-1])
        cosine = torch.cos(angle)
        mirrored = len(samples) - len(angle)
        turn, stretch, cosine = (torch.cat([value, value[:mirrored]]) for value in (turn, stretch, cosine))
        radial = torch.linalg.vecdot(grad, samples)
        along = torch.linalg.vecdot(grad, loc) - radial * cosine
        result = torch.addcmul(grad, samples, radial.unsqueeze(-1), value=-1).mul_(turn.unsqueeze(-1)).sum(0)
        return result.addcmul_(((stretch - turn) * along).sum(0).unsqueeze(-1), loc), None, None


def _polar(natural: Tensor) -> tuple[Tensor, Tensor]:
    """(μ, κ); μ is the first axis for the zero vector: the uniform distribution has no direction."""
    concentration = torch.linalg.vector_norm(natural, dim=-1)
    zero = concentration == 0
    loc = natural / concentration.masked_fill(zero, 1.0).unsqueeze(-1)
    loc[..., 0] += zero
    return loc, concentration


def _sample_angle(concentration: Tensor, dim: int, generator: torch.Generator | None) -> tuple[Tensor, ...]:
    """(θ, cos θ, sin θ) with density ∝ sin^{M−2}θ·e^{κ·cos θ}, one for each entry of `concentration`."""
    kappa = concentration.reshape(-1)
    # Where the host cannot read which entries need another round, draw all proposals in one.
    rounds, count = (_MAX_REJECTION_ROUNDS, _PROPOSALS) if is_readable(kappa) else (1, _ALL_PROPOSALS)
    results = tuple(torch.empty_like(kappa) for _ in range(3))
    todo = torch.arange(kappa.numel(), device=kappa.device)
    for left in reversed(range(rounds)):
        *proposals, accepted = _propose(kappa[todo].expand(count, -1), dim, generator)  # (count, todo) each
        first = accepted.int().argmax(0, keepdim=True)  # the first accepted one, or the first one if there is none
        for result, proposal in zip(results, proposals, strict=True):
            result[todo] = proposal.gather(0, first).squeeze(0)
        is_accepted = accepted.any(0)
        if not left or bool(is_accepted.all()):
            break
        todo = todo[~is_accepted]
    return tuple(result.view(concentration.shape) for result in results)


def _propose(kappa: Tensor, dim: int, generator: torch.Generator | None) -> tuple[Tensor, ...]:
    """One round of Wood's scheme: (θ, cos θ, sin θ, accepted).

    Envelope: b = d/(2κ + √(4κ²+d²)), d = M−1, x₀ = (1−b)/(1+b). A proposal is accepted if
    κ·(w − x₀) + d·log((1 − x₀w)/(1 − x₀²)) ≥ log u, written in 1 − w and 1 − x₀ = 2b/(1+b).
    """
    d = dim - 1
    b = d / (2 * kappa + torch.hypot(2 * kappa, torch.full_like(kappa, d)))
    tiny = torch.finfo(kappa.dtype).tiny
    far, near = (torch._standard_gamma(torch.full_like(kappa, d / 2), generator).clamp_(min=tiny) for _ in range(2))
    far = far * b
    one_minus_cosine = 2 * far / (near + far)
    one_minus_x0 = 2 * b / (1 + b)
    log_ratio = torch.log((one_minus_x0 + (1 - one_minus_x0) * one_minus_cosine) * (1 + b) ** 2 / (4 * b))
    uniform = torch.rand(kappa.shape, dtype=kappa.dtype, device=kappa.device, generator=generator)
    accepted = kappa * (one_minus_x0 - one_minus_cosine) + d * log_ratio >= torch.log(uniform)
    angle = 2 * torch.atan2(far.sqrt(), near.sqrt())
    return angle, (near - far) / (near + far), 2 * torch.sqrt(near) * torch.sqrt(far) / (near + far), accepted


def _place_around(loc: Tensor, cosine: Tensor, sine: Tensor, generator: torch.Generator | None, out: Tensor) -> None:
    """Fill `out` with cos θ·μ + sin θ·v, v uniform: the tangent is drawn at the pole e₁, then e₁ is mapped to μ.

    The map is −σ times the Householder reflection along h = μ + σe₁, σ = sign(μ₁): orthogonal to rounding for
    every M, whereas projecting a Gaussian off μ loses digits for small M.
    """
    out.normal_(generator=generator)
    out[..., 0] = 0
    length = torch.linalg.vector_norm(out, dim=-1).clamp_(min=torch.finfo(loc.dtype).tiny)
    out.mul_((sine / length).unsqueeze(-1))
    out[..., 0] = cosine
    sign = torch.where(loc[:, :1] < 0, -1.0, 1.0).to(loc.dtype)
    axis = loc.clone()
    axis[:, :1] += sign
    inner = torch.linalg.vecdot(out, axis / (1 + loc[:, :1].abs()))
    out.addcmul_(axis, inner.unsqueeze(-1), value=-1).mul_(-sign)


def _turning_rate(angle: Tensor, concentration: Tensor, dim: int) -> Tensor:
    """a(w) = ∫₀¹ (1−u)^{M−2}·e^{−κwu} du, over 40 decay lengths of the integrand."""
    slope = concentration * torch.cos(angle)
    length = (40 / (dim - 2 + slope).clamp(min=40)).unsqueeze(-1)
    nodes, weights = _gauss_legendre(angle)
    u = nodes * length
    integrand = torch.exp((dim - 2) * torch.log1p(-u) - slope.unsqueeze(-1) * u)
    return length.squeeze(-1) * (integrand * weights).sum(-1)


def _stretching_rate(angle: Tensor, concentration: Tensor, dim: int) -> Tensor:
    """c(w) = ±(1/sin θ)·∫ (cos φ − A)·p(φ)/p(θ) dφ, p(φ) ∝ sin^{M−2}φ·e^{κ·cos φ}, from θ away from the mode.

    Both sides of θ integrate to the same value up to the sign; the side without the mode decays monotonically.
    float32 holds three digits of dw/dκ = c·sin²θ up to κ = 1e4·M, where it is 1e-9 and the direction dominates.
    """
    root_curvature, mode = _mode_of_angle(concentration, dim)
    towards_zero = angle < mode
    reach = torch.minimum(torch.where(towards_zero, angle, math.pi - angle), 12 / root_curvature)
    nodes, weights = _gauss_legendre(angle)
    step = nodes * (torch.where(towards_zero, -reach, reach)).unsqueeze(-1)  # φ − θ
    centre = angle.unsqueeze(-1) + step / 2  # (φ + θ)/2
    half_step = torch.sin(step / 2)
    sine = torch.sin(angle).unsqueeze(-1)
    log_density = -2 * concentration.unsqueeze(-1) * torch.sin(centre) * half_step
    if dim > 2:
        floor = torch.finfo(angle.dtype).eps - 1
        log_density = log_density + (dim - 2) * torch.log1p((2 * torch.cos(centre) * half_step / sine).clamp(min=floor))
    one_minus_cosine = 2 * torch.sin((angle.unsqueeze(-1) + step) / 2) ** 2
    excess = _one_minus_mean_resultant_length(concentration, dim).unsqueeze(-1) - one_minus_cosine  # cos φ − A
    integral = reach * (excess * torch.exp(log_density) * weights).sum(-1)
    return torch.where(towards_zero, integral, -integral) / sine.squeeze(-1)


def _mode_of_angle(concentration: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """(√curvature of −log p at the mode, mode) of θ: κ·sin²θ = (M−2)·cos θ, with h = (M−2)/2

    cos θ = κ/(h + √(h²+κ²)),     1 − cos θ = 2h/(h + √(h²+κ²) + κ).
    """
    half = (dim - 2) / 2
    root = torch.sqrt(concentration**2 + half**2) + torch.finfo(concentration.dtype).tiny  # M = 2, κ = 0: flat
    cosine = concentration / (half + root)
    one_minus_cosine = 2 * half / (half + root + concentration)
    curvature = concentration * cosine
    if dim > 2:
        curvature = curvature + (dim - 2) / (one_minus_cosine * (1 + cosine))
    return torch.sqrt(curvature), 2 * torch.asin(torch.sqrt(one_minus_cosine / 2))


def _one_minus_mean_resultant_length(concentration: Tensor, dim: int) -> Tensor:
    """1 − A = (M·R + κ²·R·(R₊ − R))/(1 + A) with R = A/κ and R₊ the same one order higher: no cancellation."""
    squared = concentration * concentration
    ratio, next_ratio = second_moment_terms(squared, dim)
    return ratio * (dim + squared * (next_ratio - ratio)) / (1 + concentration * ratio)


def _gauss_legendre(like: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and weights of the rule on [0, 1]."""
    return like.new_tensor(_NODES), like.new_tensor(_WEIGHTS)
