"""Checks of numbers and options that a user passes: each error names the argument, what was expected and the value.

Imports the standard library only.
"""

import difflib
import math
import textwrap
from collections.abc import Iterable
from numbers import Integral, Real


class NotFiniteError(ValueError, FloatingPointError):
    """A tensor has NaN or infinite values: an argument is wrong, or the training diverged."""


def check_count(name: str, value: int, at_least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < at_least:
        raise ValueError(f"{name} must be an integer of at least {at_least}, got {value!r}")
    return int(value)


def check_positive(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < value < math.inf:
        raise ValueError(f"{name} must be a positive number, got {value!r}")
    return float(value)


def check_range(name: str, value: float, at_least: float = 0, at_most: float = math.inf) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not value >= at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {value!r}")
    if value > at_most:
        raise ValueError(f"{name} must be at most {at_most}, got {value!r}")
    return float(value)


def check_option(name: str, value: str, options: tuple[str, ...]) -> str:
    if value not in options:
        raise ValueError(f"{name} must be one of {', '.join(options)}, got {value!r}")
    return value


def nearest(name: str, valid: Iterable[str]) -> str:
    """': did you mean X?', or the valid names if none is similar; the end of a message about an unknown name."""
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    known = textwrap.shorten(", ".join(names) or "none", 500)
    return f": did you mean {close[0]!r}?" if close else f": known are {known}"
