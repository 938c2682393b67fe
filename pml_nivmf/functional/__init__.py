"""Pure tensor mathematics of von Mises-Fisher distributions; imports torch and numpy only."""

from .sampling import sample_vmf
from .vmf import log_vmf_normalizer, mean_resultant_length, relative_log_normalizer

__all__ = ["log_vmf_normalizer", "mean_resultant_length", "relative_log_normalizer", "sample_vmf"]
