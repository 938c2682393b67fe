"""Evaluation of raw embeddings, norms kept: imports torch, functional and PML.

To add a metric that is a mean over queries: a function in `query_metrics` and its name in `catalogue`; one of the whole
set: a function in a file of its own and its name in `set_metrics`; any other: PML's way, a subclass with a method
`calculate_<name>`.
"""

from .anisotropy import concentration_anisotropy
from .auroc import certainty_auroc
from .calculator import ProbabilisticAccuracyCalculator
from .calibration import expected_calibration_error
from .checks import UndefinedMetricError
from .coverage import RiskCoverage, recall_at_coverage, risk_coverage
from .degradation import share_less_certain
from .diversity import cluster_diversity, feature_diversity, intra_inter_ratio
from .query_metrics import recall_at_k
from .ranks import spearman_correlation
from .scores import certainty
from .set_metrics import CERTAINTY_METRICS, DIVERSITY_METRICS, lower_is_better
from .threshold import threshold_for_precision

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
    "expected_calibration_error",
    "feature_diversity",
    "intra_inter_ratio",
    "lower_is_better",
    "recall_at_coverage",
    "recall_at_k",
    "risk_coverage",
    "share_less_certain",
    "spearman_correlation",
    "threshold_for_precision",
]
