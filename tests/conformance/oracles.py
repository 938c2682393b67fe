"""Our distances as loops over pairs with mpmath's Bessel functions: what PML's classes are to give with ours."""

from functools import cache

import mpmath
import numpy as np
import torch
from pytorch_metric_learning.distances import BaseDistance
from torch import Tensor

from .. import references


def _nivmf(normalizer):
    """−log ρ(z/‖z‖) for K = ‖p‖·I: the vMF's density, times κ^{M−1} with the paper's normalizer."""

    def distance(z, p):
        kappa = float(np.linalg.norm(p))
        log_density = references.log_normalizer(kappa, len(z)) + float(p @ z) / float(np.linalg.norm(z))
        return -float(log_density + (normalizer == "paper") * (len(z) - 1) * mpmath.log(kappa))

    return distance


def _kl_paper(z, p):
    first, second = (float(np.linalg.norm(v)) for v in (z, p))
    normalizers = references.log_normalizer(first, len(z)) - references.log_normalizer(second, len(z))
    return float(normalizers) + first - float(z @ p) / first


PAIRS = {
    "PPKDistance": lambda z, p: references.ppk(z, p, 0.7),
    "ExpectedLikelihoodDistance": lambda z, p: references.ppk(z, p, 1.0),
    "BhattacharyyaDistance": lambda z, p: references.ppk(z, p, 0.5),
    "KLDistance": references.kl,
    "KLDistance paper": _kl_paper,
    "NivMFDistance": _nivmf("exact"),
    "NivMFDistance paper": _nivmf("paper"),
    "ExpectedLikelihoodNivMFDistance analytic": lambda z, p: references.ppk(z, p, 1.0),  # exact where K = κ·I
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
