"""Class means as the start of proxies, for this package's losses and for PML's."""

import torch
from torch import Tensor, nn

from ..functional.pairing import unit_vectors


@torch.no_grad()
def point_at_class_means(proxies: nn.Parameter, embeddings: Tensor, labels: Tensor) -> Tensor:
    """Turn each proxy to the mean of its class's embeddings; (classes,), whether there was a mean to turn to.

    Proxies keep their lengths: only directions count, and a length of about √M makes an optimizer's step a rotation by
    about the learning rate.
    """
    classes, place = labels.long().unique(return_inverse=True)  # sums of these classes only: there may be a million
    sums = embeddings.new_zeros(len(classes), embeddings.shape[1]).index_add_(0, place, embeddings)
    has_mean = torch.linalg.vector_norm(sums, dim=1) > 0
    classes, directions = classes[has_mean], unit_vectors(sums[has_mean])
    lengths = torch.linalg.vector_norm(proxies[classes], dim=1, keepdim=True)
    proxies[classes] = directions.to(proxies.dtype) * lengths
    return torch.zeros(len(proxies), dtype=torch.bool, device=labels.device).index_fill_(0, classes, True)
