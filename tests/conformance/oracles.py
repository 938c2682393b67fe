"""Our distances as loops over pairs with mpmath's Bessel functions: a reference for PML's classes with ours."""

from functools import cache, partial

import numpy as np
import torch
from pytorch_metric_learning.distances import BaseDistance
from torch import Tensor

from .. import references


def _nivmf(z, p):
    """−log ρ(z/‖z‖) for K = ‖p‖·I, where ρ is the density of a vMF."""
    return -float(references.log_normalizer(float(np.linalg.norm(p)), len(z))) - float(p @ z / np.linalg.norm(z))


PAIRS = {
    "PPK": partial(references.ppk, gamma=0.7),
    "EL-vMF": partial(references.ppk, gamma=1.0),
    "B-vMF": partial(references.ppk, gamma=0.5),
    "KL-vMF": references.kl,
    "nivMF": _nivmf,
    "EL-nivMF": partial(references.ppk, gamma=1.0),  # exact where K = κ·I
}


@cache
def _value(name, z, p):
    return PAIRS[name](np.array(z), np.array(p))


class Oracle(BaseDistance):
    """A plain PML distance, without gradients."""

    def __init__(self, name):
        super().__init__(normalize_embeddings=False)
        self.name = name

    def compute_mat(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        queries, refs = ([tuple(row) for row in side.tolist()] for side in (query_emb, ref_emb))
        return torch.tensor([[_value(self.name, z, p) for p in refs] for z in queries], dtype=query_emb.dtype)

    def pairwise_distance(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        rows = zip(query_emb.tolist(), ref_emb.tolist(), strict=True)
        return torch.tensor([_value(self.name, tuple(z), tuple(p)) for z, p in rows], dtype=query_emb.dtype)
