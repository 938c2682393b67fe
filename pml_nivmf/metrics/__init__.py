"""Evaluation of raw embeddings with their norms: retrieval, certainty, diversity, calibration.

To add a metric, write a subclass of `ProbabilisticAccuracyCalculator` with a method `calculate_<name>`, as with PML.
"""

from .calculator import ProbabilisticAccuracyCalculator
from .certainty import certainty, certainty_auroc, share_less_certain, spearman_correlation, threshold_for_precision
from .coverage import RiskCoverage, recall_at_coverage, risk_coverage
from .diversity import cluster_diversity, feature_diversity, intra_inter_ratio
from .galleries import draw_gallery, posterior_metrics
from .inputs import UndefinedMetricError
from .names import CERTAINTY_METRICS, DIVERSITY_METRICS, lower_is_better
from .proxies import concentration_anisotropy, expected_calibration_error

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
    "intra_inter_ratio",
    "lower_is_better",
    "posterior_metrics",
    "recall_at_coverage",
    "risk_coverage",
    "share_less_certain",
    "spearman_correlation",
    "threshold_for_precision",
]
