"""Figures from plain arrays, headless: each function returns a matplotlib Figure, `save` writes PNG and SVG.

To add one: a function under `@styled` in a file of its own that ends in `return figure`, and its name here.
"""

from .bars import ablation_bars
from .curves import risk_coverage_curves, training_curves
from .degradation import degradation_curves
from .grids import class_norm_grid, norm_grid
from .histograms import norm_histograms
from .normalizers import NormalizerCurves, normalizer_approximations
from .retrieval import retrieval_sheet
from .saving import FORMATS, check_formats, save
from .sphere import Panel, densities_on_sphere
from .surfaces import distance_surfaces
from .theory import NEEDING_NO_RUN
from .weight import metric_against_weight

__all__ = [
    "FORMATS",
    "NEEDING_NO_RUN",
    "NormalizerCurves",
    "Panel",
    "ablation_bars",
    "check_formats",
    "class_norm_grid",
    "degradation_curves",
    "densities_on_sphere",
    "distance_surfaces",
    "metric_against_weight",
    "norm_grid",
    "norm_histograms",
    "normalizer_approximations",
    "retrieval_sheet",
    "risk_coverage_curves",
    "save",
    "training_curves",
]
