"""Checks of tensors: finite, and short enough to be squared.

On the CPU a failed check raises a ValueError that names the row. On any other device, reading a value would make the
host wait for the device in every step, and inside torch.compile it would break the graph. There the check is
`torch._assert_async`, whose RuntimeError names the fault but not the row.
"""

import torch
from torch import Tensor

from ..checks import NotFiniteError
from .pairing import at_least_float32


def is_readable(tensor: Tensor) -> bool:
    """Whether the host can read a value of this tensor without waiting."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def first_false(rows: Tensor, message: str) -> int | None:
    """The first row of a boolean (rows,) that is False, or None. Where it cannot be read, assert `message` instead."""
    if not is_readable(rows):
        torch._assert_async(rows.all(), message)
        return None
    return None if bool(rows.all()) else int((~rows).nonzero()[0])


def check_squarable(name: str, vectors: Tensor, scale: Tensor | float = 1.0) -> None:
    """Raise NotFiniteError, a ValueError, if an entry of (rows, M) is NaN or infinite, or if ‖scale·v‖² overflows."""
    # One reduction that is not finite as soon as any entry is not, or a squared norm overflows.
    norms = scale * torch.linalg.vector_norm(at_least_float32(vectors.detach()), dim=1)
    problem = f"{name} hold NaN, infinity or a norm that is too large to be squared"
    if (row := first_false(torch.isfinite(norms * norms), problem)) is not None:
        raise NotFiniteError(f"{problem}, first in row {row}: check the learning rate and the model's inputs")
