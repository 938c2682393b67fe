"""Checks of numbers and options a user hands over, for every folder: each names what came and what was expected.

Imports the standard library only.
"""

import math
from numbers import Integral, Real


class NotFiniteError(ValueError, FloatingPointError):
    """NaN, infinity or overflow in a tensor: a wrong argument, or a training that has diverged."""


def check_count(name: str, value: int, at_least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < at_least:
        raise ValueError(f"{name} must be an integer of at least {at_least}, got {value!r}")
    return int(value)


def check_positive(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < value < math.inf:
        raise ValueError(f"{name} must be a positive number, got {value!r}")
    return float(value)


def check_option(name: str, value: str, options: tuple[str, ...]) -> str:
    if value not in options:
        raise ValueError(f"{name} must be one of {', '.join(options)}, got {value!r}")
    return value
