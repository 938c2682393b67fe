"""Checks of what a user hands to a data set: each names the offending value and, where there is one, the remedy."""

import math


def check_share(name: str, value: float) -> float:
    """A share of the classes, strictly between none and all of them."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        raise ValueError(f"{name} must be a share of the classes between 0 and 1, both excluded, got {value!r}")
    return float(value)


def check_not_negative(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{name} must be a number of at least 0, got {value!r}")
    return float(value)
