"""How unequal the concentrations of a class are over the dimensions."""

from typing import Any

import torch
from torch import Tensor

from .checks import as_embeddings


def concentration_anisotropy(concentration: Any) -> Tensor:
    r"""The coefficient of variation of every class's concentrations, std_m(κ_m)/mean_m(κ_m), (classes,).

    0 is an isotropic class, a plain von Mises-Fisher; it does not change with the class's overall concentration, and
    its largest value, all of it on one of M dimensions, is √(M−1).

    concentration: κ > 0, (classes, M), as learned by NonIsotropicVMFLoss and NivMFProxyLoss.
    """
    values = as_embeddings("concentration", concentration).double()
    if not bool((values > 0).all()):
        row = int((values <= 0).any(dim=1).nonzero()[0])
        least = float(values[row].min())
        raise ValueError(f"concentration must be positive, got {least} in row {row}: log-concentrations need .exp()")
    deviation, mean = torch.std_mean(values, dim=1, correction=0)
    return deviation / mean
