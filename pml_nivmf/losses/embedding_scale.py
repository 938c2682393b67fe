r"""Where embeddings start on the concentration axis.

A fresh Linear head gives norms of about √(M/3), but a von Mises-Fisher in M dimensions with κ ≪ M is nearly uniform:
its mean cosine is A ≈ 2c/(1 + √(1+4c²)) with c = κ/M, 0.10 at c = 0.1 and 0.88 at c = 4. Losses that carry the norm
therefore multiply embeddings by one constant, set once so that the mean concentration starts at c = 4, and never
changed afterwards: what the network learns is the norm relative to that.
"""

import torch
from torch import Tensor, nn

CONCENTRATION_PER_DIMENSION = 4.0


def starting_norm(dim: int) -> float:
    """The mean concentration κ_z that embeddings of M = `dim` dimensions should start with: 4·M."""
    return CONCENTRATION_PER_DIMENSION * dim


@torch.no_grad()
def calibrate_head(head: nn.Linear, features: Tensor, target_norm: float | None = None) -> float:
    """Scale a Linear head, in place, so that its outputs for `features` have mean norm `target_norm` (default 4·M).

    An alternative to a loss's `embedding_scale="auto"` for models whose raw norms should be concentrations at
    inference; use it with `embedding_scale=1.0`. Scaling weights by s makes a given learning rate s times slower.

    Returns the factor.
    """
    target = starting_norm(head.out_features) if target_norm is None else target_norm
    if not target > 0:
        raise ValueError(f"target_norm must be positive, got {target}")
    mean_norm = float(torch.linalg.vector_norm(head(features), dim=-1).mean())
    if not 0 < mean_norm < float("inf"):
        raise ValueError(f"the head's outputs have mean norm {mean_norm}: it cannot be scaled to {target}")
    factor = target / mean_norm
    head.weight.mul_(factor)
    if head.bias is not None:
        head.bias.mul_(factor)
    return factor
