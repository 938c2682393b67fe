"""Evaluation of raw embeddings with their norms: retrieval, certainty, diversity, calibration.

To add a metric, write a subclass of `ProbabilisticAccuracyCalculator` with a method `calculate_<name>`, as with PML.
"""

from .calculator import ProbabilisticAccuracyCalculator, lower_is_better
from .certainty import (
    CERTAINTY_METRICS,
    RiskCoverage,
    certainty,
    certainty_auroc,
    recall_at_coverage,
    risk_coverage,
    share_less_certain,
    threshold_for_precision,
)
from .diversity import DIVERSITY_METRICS, cluster_diversity, feature_diversity
from .inputs import UndefinedMetricError
from .posteriors import concentration_anisotropy, draw_gallery, expected_calibration_error, posterior_metrics

__all__ = [
    "CERTAINTY_METRICS",
    "DIVERSITY_METRICS",
    "ProbabilisticAccuracyCalculator",
    "RiskCoverage",
    "UndefinedMetricError",
    "certainty",
    "certainty_auroc",
    "cluster_diversity",
    "concentration_anisotropy",
    "draw_gallery",
    "expected_calibration_error",
    "feature_diversity",
    "lower_is_better",
    "posterior_metrics",
    "recall_at_coverage",
    "risk_coverage",
    "share_less_certain",
    "threshold_for_precision",
]
