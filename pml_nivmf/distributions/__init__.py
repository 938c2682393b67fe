"""vMF and nivMF as subclasses of torch.distributions.Distribution; imports functional only."""

from .constraints import unit_vector
from .non_isotropic import NonIsotropicVonMisesFisher
from .von_mises_fisher import VonMisesFisher

__all__ = ["NonIsotropicVonMisesFisher", "VonMisesFisher", "unit_vector"]
