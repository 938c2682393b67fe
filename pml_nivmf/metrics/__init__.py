"""Evaluation of raw embeddings, norms kept: imports torch, functional and PML.

To add a metric that is a mean over queries: a function in `query_metrics` and its name in `catalogue`. Any other:
PML's way, a subclass with a method `calculate_<name>`.
"""

from .calculator import ProbabilisticAccuracyCalculator
from .query_metrics import recall_at_k

__all__ = ["ProbabilisticAccuracyCalculator", "recall_at_k"]
