r"""Ratios and logarithms of modified Bessel functions, regular at zero and exact at every order.

With ν = M/2 − 1 and x = κ², two functions of x determine the vMF's normalizer and its derivatives:

    r_ν(x) = log C_M(κ) − log C_M(0)            (the log-normalizer relative to the uniform density)
    R_ν(x) = I_{ν+1}(κ) / (κ·I_ν(κ))            (the mean resultant length divided by κ; 1/M at κ = 0)

They are evaluated as functions of the *squared* concentration because both are analytic there: nothing is singular
at κ = 0, and a squared norm ‖z‖² needs no square root, whose gradient is undefined at z = 0. Their derivatives are

    r_ν′(x) = −R_ν(x)/2,        R_ν′(x) = R_ν(x)·(R_{ν+1}(x) − R_ν(x))/2.

Functions here take tensors and orders; those in `vmf.py` take dimensions and concentrations.
"""

import math
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.polynomial import polynomial
from torch import Tensor

# The smallest order at which the asymptotic series is used; lower orders follow by recurrence.
_SERIES_MIN_ORDER = {torch.float32: 12.0, torch.float64: 30.0}
_SERIES_MAX_TERMS = 10


def vmf_ratio(squared: Tensor, order: float) -> Tensor:
    """R_ν(x) for x = `squared` = κ² ≥ 0, in float32 or float64, differentiable any number of times."""
    return _Ratio.apply(squared, order)


def vmf_normalizer_change(base: Tensor | None, delta: Tensor, order: float) -> Tensor:
    """r_ν(base + delta) − r_ν(base) without cancellation. A `base` of None is zero, where r_ν is zero, too.

    `base` and base + `delta` are squared concentrations ≥ 0, up to rounding; they broadcast. A loss that compares one
    image with many proxies needs this difference, which is small where both normalizers are large.
    """
    return _NormalizerChange.apply(base, delta, order)[0]


class _Ratio(torch.autograd.Function):
    @staticmethod
    def forward(squared: Tensor, order: float) -> Tensor:
        top, steps = _starting_order(squared.dtype, order)
        return _descend_ratio(squared, _DebyeSeries(top, squared.dtype).ratio(squared), order, steps)

    @staticmethod
    def setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
        squared, ctx.order = inputs
        ctx.save_for_backward(squared, output)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        squared, ratio = ctx.saved_tensors
        if torch.is_grad_enabled():  # in terms of vmf_ratio: derivatives of any order
            return grad * ratio * (vmf_ratio(squared, ctx.order + 1) - ratio) * 0.5, None
        return grad * _ratio_slope(squared, ctx.order), None


class _NormalizerChange(torch.autograd.Function):
    """(r(base + delta) − r(base), R(base + delta)); the second is saved for the backward."""

    @staticmethod
    def forward(base: Tensor | None, delta: Tensor, order: float) -> tuple[Tensor, Tensor]:
        return _change_and_ratio(base, delta, order)

    @staticmethod
    def setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
        base, delta, ctx.order = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(base, delta, output[1])

    @staticmethod
    def backward(ctx, grad, _):  # type: ignore[no-untyped-def]
        base, delta, ratio = ctx.saved_tensors
        if torch.is_grad_enabled():  # double backward: the saved ratio has no graph
            ratio = vmf_ratio(delta if base is None else _end(base, delta), ctx.order)
        grad_end = grad * ratio * -0.5
        grad_base = None
        if ctx.needs_input_grad[0]:
            grad_base = grad_end.sum_to_size(base.shape)
            grad_base = grad_base + grad.sum_to_size(base.shape) * vmf_ratio(base, ctx.order) * 0.5
        return grad_base, grad_end.sum_to_size(delta.shape), None


def _change_and_ratio(base: Tensor | None, delta: Tensor, order: float) -> tuple[Tensor, Tensor]:
    """Expand at a high enough order, then step down by r_j = r_{j+1} − log(1 + x·R_{j+1}/(2(j+1)))."""
    top, steps = _starting_order(delta.dtype, order)
    series = _DebyeSeries(top, delta.dtype)
    end = delta if base is None else _end(base, delta)
    change, ratio = series.change_and_ratio(base, delta, end)
    base_ratio = series.ratio(base) if base is not None and steps else None
    for step in reversed(range(steps)):
        twice_next = 2 * (order + step + 1)
        if base is None or base_ratio is None:
            change -= torch.log1p(end * ratio / twice_next)
        else:
            growth = base * base_ratio
            change -= torch.log1p(((end * ratio - growth) / (twice_next + growth)).clamp_(min=_above_minus_one(end)))
            base_ratio = _descend_ratio(base, base_ratio, order + step, 1)
        ratio = _descend_ratio(end, ratio, order + step, 1)
    return change, ratio


def _above_minus_one(like: Tensor) -> float:
    """A lower bound for arguments of log1p, which rounding could bring to −1."""
    return 2 * torch.finfo(like.dtype).eps - 1


def _end(base: Tensor, delta: Tensor) -> Tensor:
    """base + delta, which rounding may make negative. The functions are analytic around 0, so −½ is small enough."""
    return (base + delta).clamp(min=-0.5)


def _descend_ratio(squared: Tensor, ratio: Tensor, order: float, steps: int) -> Tensor:
    """From R at order + steps to R at order by R_j = 1/(2(j+1) + x·R_{j+1}): positive terms, regular at x = 0."""
    for step in reversed(range(steps)):
        ratio = (squared * ratio).add_(2 * (order + step + 1)).reciprocal_()
    return ratio


def _ratio_slope(squared: Tensor, order: float) -> Tensor:
    """R_ν′(x) by R_j′ = −R_j²·(R_{j+1} + x·R_{j+1}′) from the slope of the series: R_{ν+1} − R_ν would cancel."""
    top, steps = _starting_order(squared.dtype, order)
    series = _DebyeSeries(top, squared.dtype)
    ratio, slope = series.ratio(squared), series.ratio_slope(squared)
    for step in reversed(range(steps)):
        inner = (squared * slope).add_(ratio)
        ratio = _descend_ratio(squared, ratio, order + step, 1)
        slope = inner.mul_(ratio).mul_(ratio).neg_()
    return slope


def _starting_order(dtype: torch.dtype, order: float) -> tuple[float, int]:
    """(an order at which the series is accurate to rounding, its distance from `order`)."""
    if dtype not in _SERIES_MIN_ORDER:
        raise TypeError(f"squared concentrations must be float32 or float64, got {dtype}")
    steps = max(0, math.ceil(_SERIES_MIN_ORDER[dtype] - order))
    return order + steps, steps


class _DebyeSeries:
    r"""Debye's expansion of I_ν(νz), uniform in z [DLMF 10.41.3], for one order ν.

    With s = √(1+z²), p = 1/s and L(p) = log Σ_k U_k(p)/ν^k; the factor ν·log z cancels against that of log C_M:

        r₁ − r₀ = −ν(s₁−s₀) + ν·log((1+s₁)/(1+s₀)) + ½·log(s₁/s₀) − (L(p₁) − L(p₀)),   s₁ − s₀ = (z₁²−z₀²)/(s₁+s₀),
        R = [1/(1+s) − p²·(½ + p·L′(p))/ν]/ν.

    Operations are in place: tensors are large (images × proxies) and allocation costs more than arithmetic.
    """

    def __init__(self, order: float, dtype: torch.dtype):
        self.order = order
        self.coefficients = _log_debye_coefficients(order, _term_count(order, dtype))

    def change_and_ratio(self, base: Tensor | None, delta: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
        s1, p1 = self._s_and_p(end)
        s0, p0 = (delta.new_ones(()),) * 2 if base is None else self._s_and_p(base)
        rise = (s1 + s0).reciprocal_().mul_(delta).mul_(1 / self.order**2)  # s₁ − s₀
        if base is not None:  # keeps s₁ > 0 where rounding would make it 0 and its logarithm −∞
            rise = torch.maximum(rise, s0 * _above_minus_one(s0))
        change = (rise / (1 + s0)).log1p_().sub_(rise).mul_(self.order)
        change.add_((rise * p0).log1p_(), alpha=0.5)
        if base is None:  # by p₁ − 1 = −(s₁ − 1)·p₁, so that a small r keeps all digits
            change.addcmul_(_polynomial(self.coefficients.from_one, p1).mul_(p1), rise)
        else:
            change.sub_(_polynomial(self.coefficients.value, p1)).add_(_polynomial(self.coefficients.value, p0))
        return change, self._ratio(s1, p1)

    def ratio(self, squared: Tensor) -> Tensor:
        return self._ratio(*self._s_and_p(squared))

    def ratio_slope(self, squared: Tensor) -> Tensor:
        """dR/dx = (dR/ds)·p/(2ν²), dR/ds = −1/(ν(1+s)²) + p²·d(p²h)/dp with h(p) = (½ + p·L′(p))/ν²."""
        s, p = self._s_and_p(squared)
        by_s = _polynomial(self.coefficients.correction_slope, p).mul_(p).mul_(p)
        by_s.sub_(s.add_(1).square_().mul_(self.order).reciprocal_())
        return by_s.mul_(p).mul_(0.5 / self.order**2)

    def _s_and_p(self, squared: Tensor) -> tuple[Tensor, Tensor]:
        s = (squared * (1 / self.order**2)).add_(1).sqrt_()
        return s, 1 / s

    def _ratio(self, s: Tensor, p: Tensor) -> Tensor:
        """1/(1+s)/ν minus p²·(½ + p·L′(p))/ν²; overwrites s."""
        correction = _polynomial(self.coefficients.half_plus_slope, p).mul_(p).mul_(p)
        return s.add_(1).mul_(self.order).reciprocal_().sub_(correction)


def _term_count(order: float, dtype: torch.dtype) -> int:
    """How many powers of 1/ν reduce the truncation error, measured as about order^−(terms+2), to rounding."""
    needed = math.ceil(-math.log(torch.finfo(dtype).eps) / math.log(order)) - 2
    return min(max(needed, 1), _SERIES_MAX_TERMS)


def _polynomial(coefficients: tuple[float, ...], p: Tensor) -> Tensor:
    """Horner's rule; coefficients start with the lowest power, the degree is at least 1."""
    value = p * coefficients[-1]
    for coefficient in reversed(coefficients[1:-1]):
        value.add_(coefficient).mul_(p) if coefficient else value.mul_(p)
    return value.add_(coefficients[0]) if coefficients[0] else value


class _LogDebye(NamedTuple):
    """Coefficients, lowest power first."""

    value: tuple[float, ...]  # L(p)
    half_plus_slope: tuple[float, ...]  # h(p) = (½ + p·L′(p))/ν²
    correction_slope: tuple[float, ...]  # d(p²·h(p))/dp
    from_one: tuple[float, ...]  # (L(p) − L(1))/(p − 1)


def _log_debye_coefficients(order: float, terms: int) -> _LogDebye:
    return _cached_log_debye_coefficients(order, terms)


# Tracing the exact arithmetic would take minutes. torch.compiler.assume_constant_result does the same, but imports the
# whole compiler, which takes two seconds.
_log_debye_coefficients._dynamo_marked_constant = True  # type: ignore[attr-defined]


@lru_cache(maxsize=256)
def _cached_log_debye_coefficients(order: float, terms: int) -> _LogDebye:
    value = [0.0] * (3 * terms + 1)
    for k, slope in enumerate(_log_debye_slopes()[:terms], start=1):
        for power, coefficient in enumerate(slope, start=1):
            value[power] += float(coefficient / power) / order**k
    half_plus_slope = [power * coefficient / order**2 for power, coefficient in enumerate(value)]
    half_plus_slope[0] = 0.5 / order**2
    correction_slope = [0.0, *((power + 2) * coefficient for power, coefficient in enumerate(half_plus_slope))]
    from_one = [math.fsum(value[power + 1 :]) for power in range(3 * terms)]
    return _LogDebye(tuple(value), tuple(half_plus_slope), tuple(correction_slope), tuple(from_one))


@lru_cache(maxsize=1)
def _log_debye_slopes() -> list[np.ndarray]:
    """D_1′ … D_K′ of L = log Σ_k U_k/ν^k = Σ_k D_k/ν^k in exact arithmetic, from the recurrence of the U_k [10.41.9]:

    D′_{k+1} = ½p²(1−p²)·(D″_k + Σ_{0<j<k} D′_j·D′_{k−j}) + (p − 2p³)·D′_k,     D′_1 = ⅛(1 − 5p²).
    """
    half, eighth = Fraction(1, 2), Fraction(1, 8)
    slopes = [np.array([eighth, 0, -5 * eighth])]
    for k in range(1, _SERIES_MAX_TERMS):
        second = polynomial.polyder(slopes[-1])
        for j in range(1, k):
            second = polynomial.polyadd(second, polynomial.polymul(slopes[j - 1], slopes[k - j - 1]))
        terms = ([0, 0, half, 0, -half], second), ([0, 1, 0, -2], slopes[-1])
        slopes.append(polynomial.polyadd(*(polynomial.polymul(*factors) for factors in terms)))
    return slopes
