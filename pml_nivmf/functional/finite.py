"""The check that all mathematics here needs of its vectors: finite, and short enough to be squared.

Inside torch.compile a value cannot be asked for without breaking the graph. There the graph asserts the same, with a
RuntimeError that names the fault but not the row.
"""

import torch
from torch import Tensor

from ..checks import NotFiniteError
from .pairing import at_least_float32


def check_squarable(name: str, vectors: Tensor, scale: Tensor | float = 1.0) -> None:
    """Raise NotFiniteError, a ValueError, if an entry of (rows, M) is NaN or infinite, or if ‖scale·v‖² overflows."""
    # One reduction that is not finite as soon as any entry is not, or a squared norm overflows.
    norms = scale * torch.linalg.vector_norm(at_least_float32(vectors.detach()), dim=1)
    fine = torch.isfinite(norms * norms)
    if torch.compiler.is_compiling():
        torch._assert_async(fine.all(), f"{name} hold NaN, infinity or a norm that is too large to be squared")
    elif not bool(fine.all()):
        _raise(name, vectors, int((~fine).nonzero()[0]), norms.dtype)


def _raise(name: str, vectors: Tensor, row: int, dtype: torch.dtype) -> None:
    if bool(torch.isfinite(vectors[row]).all()):
        raise NotFiniteError(f"{name}: the norm of row {row} is too large to be squared in {dtype}")
    kind = "NaN" if bool(torch.isnan(vectors[row]).any()) else "infinity"
    raise NotFiniteError(f"{name} hold {kind}, first in row {row}: look at the learning rate and the model's inputs")
