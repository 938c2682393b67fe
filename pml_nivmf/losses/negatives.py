r"""A softmax over huge numbers of classes from a sample of them.

All classes P of the batch are kept; of the C − |P| others, n are drawn uniformly without replacement. Each stands for
(C − |P|)/n classes, so log((C − |P|)/n), the logarithm of the inverse sampling rate, is added to its logit: the
sum of exponentials is then right on average.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Candidates(NamedTuple):
    """Classes to compute, with repeats and refused ones among them: so that K is the same for every batch."""

    classes: Tensor  # (K,)
    offset: Tensor  # (K,) to be added to the logits: a huge negative number refuses a class
    target: Tensor  # (batch,) where each label's class stands


def draw_candidates(labels: Tensor, num_classes: int, negative_samples: int, dtype: torch.dtype) -> Candidates:
    """The batch's classes and `negative_samples` others, or all others if there are no more than that."""
    kept = labels.sort().values
    first = torch.ones_like(kept, dtype=torch.bool)
    first[1:] = kept[1:] != kept[:-1]
    in_batch = torch.zeros(num_classes, dtype=torch.bool, device=labels.device).scatter_(0, kept, True)
    # The first n classes of a random order that are not the batch's lie among its first n + |batch|.
    drawn = torch.randperm(num_classes, device=labels.device)[: negative_samples + len(labels)]
    others = ~in_batch[drawn]
    negative = others & (others.cumsum(0) <= negative_samples)
    rate = negative.sum().to(dtype) / (num_classes - first.sum())  # NaN if there is no other class: refused below
    # Refused is not −∞: a chunk of refused classes alone would have NaN as its softmax.
    zero, refused = rate.new_zeros(()), rate.new_full((), torch.finfo(dtype).min / 2)
    offset = torch.cat([torch.where(first, zero, refused), torch.where(negative, -torch.log(rate), refused)])
    return Candidates(torch.cat([kept, drawn]), offset, torch.searchsorted(kept, labels))
