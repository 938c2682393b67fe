"""Probabilistic proxies for pytorch-metric-learning: non-isotropic von Mises-Fisher losses, distances, distributions.

Import from the sub-packages: `pml_nivmf.losses`, `.distances`, `.distributions`, `.functional`.
"""

__version__ = "0.1.0"
