r"""Ratios and logarithms of modified Bessel functions, regular at zero and exact at every order.

With ν = M/2 − 1 and x = κ², two functions of x carry all of the vMF's normalisation:

    r_ν(x) = log C_M(κ) − log C_M(0)            (the log-normalizer relative to the uniform density)
    R_ν(x) = I_{ν+1}(κ) / (κ·I_ν(κ))            (the mean resultant length divided by κ; 1/M at κ = 0)

They are evaluated as functions of the *squared* concentration because both are analytic there: nothing is singular
at κ = 0, and a squared norm ‖z‖² needs no square root whose gradient breaks at z = 0. Derivatives close on themselves:

    r_ν′(x) = −R_ν(x)/2,        R_ν′(x) = R_ν(x)·(R_{ν+1}(x) − R_ν(x))/2.

This file knows tensors and orders only; `vmf.py` speaks of dimensions and concentrations.
"""

import math
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

# The asymptotic series is used from this order on; smaller orders come down to it by recurrence.
_SERIES_MIN_ORDER = {torch.float32: 12.0, torch.float64: 30.0}
_SERIES_MAX_TERMS = 10


def vmf_ratio(squared: Tensor, order: float) -> Tensor:
    """R_ν(x) for x = `squared` = κ² ≥ 0, in float32 or float64, differentiable any number of times."""
    return _NormalizerChange.apply(None, squared, order)[1]


def vmf_relative_normalizer(squared: Tensor, order: float) -> Tensor:
    """r_ν(x) for x = `squared` = κ² ≥ 0."""
    return _NormalizerChange.apply(None, squared, order)[0]


def vmf_normalizer_change(base: Tensor, delta: Tensor, order: float) -> Tensor:
    """r_ν(base + delta) − r_ν(base) without cancellation.

    `base` and base + `delta` are squared concentrations, so both must be ≥ 0; they broadcast. A loss that compares
    one image with many proxies needs just this difference, which is small where both normalizers are large.
    """
    return _NormalizerChange.apply(base, delta, order)[0]


class _NormalizerChange(torch.autograd.Function):
    """Returns (change of r, R at the end) so that the saved ratio keeps a graph: every derivative is available.

    A `base` of None is zero: the change is then r itself.
    """

    @staticmethod
    def forward(base: Tensor | None, delta: Tensor, order: float) -> tuple[Tensor, Tensor]:
        if delta.dtype not in _SERIES_MIN_ORDER:
            raise TypeError(f"squared concentrations must be float32 or float64, got {delta.dtype}")
        return _evaluate(base, delta, order)

    @staticmethod
    def setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
        base, delta, ctx.order = inputs
        ctx.save_for_backward(base, delta, output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, grad_change, grad_ratio):  # type: ignore[no-untyped-def]
        base, delta, ratio = ctx.saved_tensors
        grad_end = grad_change * ratio * -0.5 if grad_change is not None else torch.zeros_like(ratio)
        if grad_ratio is not None:
            next_ratio = vmf_ratio(delta if base is None else base + delta, ctx.order + 1)
            grad_end = grad_end + grad_ratio * ratio * (next_ratio - ratio) * 0.5
        grad_base = None
        if ctx.needs_input_grad[0]:
            grad_base = grad_end.sum_to_size(base.shape)
            if grad_change is not None:
                grad_base = grad_base + grad_change.sum_to_size(base.shape) * vmf_ratio(base, ctx.order) * 0.5
        return grad_base, grad_end.sum_to_size(delta.shape), None


def _evaluate(base: Tensor | None, delta: Tensor, order: float) -> tuple[Tensor, Tensor]:
    """(r(base + delta) − r(base), R(base + delta)): the expansion at a high enough order, then down order by order:

    R_j = 1 / (2(j+1) + x·R_{j+1}),     r_j = r_{j+1} − log(1 + x·R_{j+1} / (2(j+1))).

    With positive terms only, the recurrence is stable and regular at x = 0.
    """
    steps = max(0, math.ceil(_SERIES_MIN_ORDER[delta.dtype] - order))
    series = _DebyeSeries(order + steps, delta)
    end = delta if base is None else base + delta
    change, ratio = series.change_and_ratio(base, delta, end)
    base_ratio = series.ratio(series.s(base)) if base is not None and steps else None
    for step in reversed(range(steps)):
        twice_next = 2 * (order + step + 1)
        growth = end * ratio
        ratio = 1 / (twice_next + growth)
        if base is None or base_ratio is None:
            change -= torch.log1p(growth / twice_next)
        else:
            base_growth = base * base_ratio
            base_ratio = 1 / (twice_next + base_growth)
            change -= torch.log1p((growth - base_growth) * base_ratio)
    return change, ratio


class _DebyeSeries:
    r"""Debye's expansion of I_ν(νz), uniform in z [DLMF 10.41.3], for one order ν.

    With s = √(1+z²), p = 1/s and L(p) = log Σ_k U_k(p)/ν^k; the factor ν·log z cancels against that of log C_M:

        r₁ − r₀ = −ν(s₁−s₀) + ν·log((1+s₁)/(1+s₀)) + ½·log(s₁/s₀) − (L(p₁) − L(p₀)),   s₁ − s₀ = (z₁²−z₀²)/(s₁+s₀),
        R = [1/(1+s) − p²·(½ + p·L′(p))/ν]/ν.

    Steps are in place because the arrays are large (images × proxies) and fresh memory costs more than arithmetic.
    """

    def __init__(self, order: float, like: Tensor):
        self.order = order
        self.coefficients = _log_debye_coefficients(order, _term_count(order, like.dtype))

    def s(self, squared: Tensor) -> Tensor:
        return (squared * (1 / self.order**2)).add_(1).sqrt_()

    def change_and_ratio(self, base: Tensor | None, delta: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
        s1 = self.s(end)
        s0 = delta.new_ones(()) if base is None else self.s(base)
        rise = (s1 + s0).reciprocal_().mul_(delta).mul_(1 / self.order**2)  # s₁ − s₀
        p1 = 1 / s1
        change = (rise / (1 + s0)).log1p_().sub_(rise).mul_(self.order)
        change.add_((rise / s0).log1p_(), alpha=0.5)
        if base is None:  # p₁ − 1 = −(s₁ − 1)·p₁ keeps all digits of a small r
            change.add_(_polynomial(self.coefficients.from_one, p1).mul_(p1).mul_(rise))
        else:
            change.sub_(_polynomial(self.coefficients.value, p1)).add_(_polynomial(self.coefficients.value, 1 / s0))
        return change, self.ratio(s1)

    def ratio(self, s: Tensor) -> Tensor:
        p = 1 / s
        ratio = _polynomial(self.coefficients.slope, p).mul_(p).add_(0.5).mul_(p).mul_(p).mul_(-1 / self.order)
        return ratio.add_((1 + s).reciprocal_()).mul_(1 / self.order)


def _term_count(order: float, dtype: torch.dtype) -> int:
    """How many powers of 1/ν bring the truncation error, measured as about order^−(terms+2), under rounding."""
    needed = math.ceil(-math.log(torch.finfo(dtype).eps) / math.log(order)) - 2
    return min(max(needed, 1), _SERIES_MAX_TERMS)


def _polynomial(coefficients: tuple[float, ...], p: Tensor) -> Tensor:
    """Horner's rule, lowest power first, for a polynomial of degree 1 at least."""
    value = p * coefficients[-1]
    for coefficient in reversed(coefficients[1:-1]):
        value.add_(coefficient).mul_(p) if coefficient else value.mul_(p)
    return value.add_(coefficients[0]) if coefficients[0] else value


class _LogDebye(NamedTuple):
    """Coefficients, lowest power first, of L(p), of L′(p) and of (L(p) − L(1))/(p − 1)."""

    value: tuple[float, ...]
    slope: tuple[float, ...]
    from_one: tuple[float, ...]


@lru_cache(maxsize=256)
def _log_debye_coefficients(order: float, terms: int) -> _LogDebye:
    value = [0.0] * (3 * terms + 1)
    for k, polynomial in enumerate(_log_debye_polynomials()[: terms + 1]):
        for power, coefficient in enumerate(polynomial):
            value[power] += float(coefficient) / order**k
    slope = [power * coefficient for power, coefficient in enumerate(value)][1:]
    from_one = [math.fsum(value[power + 1 :]) for power in range(3 * terms)]
    return _LogDebye(tuple(value), tuple(slope), tuple(from_one))


@lru_cache(maxsize=1)
def _log_debye_polynomials() -> list[list[Fraction]]:
    """D_0 … D_K with log Σ_k U_k/ν^k = Σ_k D_k/ν^k, exactly: k·D_k = k·U_k − Σ_{0<j<k} j·D_j·U_{k−j}."""
    u = _debye_polynomials()
    logarithms: list[list[Fraction]] = [[Fraction(0)]]
    for k in range(1, len(u)):
        polynomial = list(u[k])
        for j in range(1, k):
            for a, first in enumerate(logarithms[j]):
                for b, second in enumerate(u[k - j]):
                    polynomial[a + b] -= Fraction(j, k) * first * second
        logarithms.append(polynomial)
    return logarithms


def _debye_polynomials() -> list[list[Fraction]]:
    """U_0 … U_K in exact arithmetic: U_{k+1} = ½p²(1−p²)U_k′ + ⅛∫₀ᵖ(1−5t²)U_k dt [DLMF 10.41.9]."""
    polynomials = [[Fraction(1)]]
    for _ in range(_SERIES_MAX_TERMS):
        following = [Fraction(0)] * (len(polynomials[-1]) + 3)
        for power, coefficient in enumerate(polynomials[-1]):
            following[power + 1] += coefficient * (Fraction(power, 2) + Fraction(1, 8 * (power + 1)))
            following[power + 3] -= coefficient * (Fraction(power, 2) + Fraction(5, 8 * (power + 3)))
        polynomials.append(following)
    return polynomials
