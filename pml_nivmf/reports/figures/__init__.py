"""Figures from plain arrays: each function returns a matplotlib Figure, `save` writes PNG and SVG files.

To add one, write a function with the decorator `styled` that returns a figure.
"""

from .style import save
from .theory import NEEDING_NO_RUN, densities_on_sphere

__all__ = ["NEEDING_NO_RUN", "densities_on_sphere", "save"]
