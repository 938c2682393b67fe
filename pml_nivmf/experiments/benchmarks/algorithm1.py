"""The paper's Algorithm 1 written down as it stands, image by image: the benchmark's yardstick.

For each image, every sample is expanded against every proxy, (N, C, M), and the density is evaluated as printed. It
computes what `NonIsotropicVMFLoss(normalizer="paper", estimator="monte_carlo")` computes, and a test holds the two
together; nobody should train with it.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from ...functional.sampling import sample_vmf
from ...functional.vmf import relative_log_normalizer


def algorithm1_loss(
    embeddings: Tensor, labels: Tensor, proxies: Tensor, log_concentration: Tensor, temperature: Tensor, n_samples: int
) -> Tensor:
    """Mean of −log softmax_c(log (1/N)·Σ_i ρ_c(z_i)^{1/t}) over the batch."""
    losses = []
    for embedding, label in zip(embeddings, labels, strict=True):
        samples = sample_vmf(embedding, (n_samples,), antithetic=True)  # z_i ~ ζ, (N, M)
        log_density = nivmf_log_density(samples, F.normalize(proxies, dim=-1), log_concentration.exp())  # (N, C)
        logits = torch.logsumexp(log_density / temperature, dim=0) - math.log(n_samples)
        losses.append(-torch.log_softmax(logits, dim=0)[label])
    return torch.stack(losses).mean()


def nivmf_log_density(samples: Tensor, loc: Tensor, concentration: Tensor) -> Tensor:
    """log ρ(z_i) − log C_M(0) = r(κ̃) + Σ log κ_m − log κ̃ + κ̃·cos(Kz_i, Kμ), every sample with every proxy."""
    shape = (len(samples), *loc.shape)  # (N, C, M)
    concentration, loc = concentration.expand(shape), loc.expand(shape)
    stretched_loc = concentration * loc
    stretched_samples = concentration * samples.unsqueeze(1).expand(shape)
    length = stretched_loc.norm(dim=-1)
    cosine = torch.cosine_similarity(stretched_samples, stretched_loc, dim=-1)
    log_d = concentration.log().sum(-1) - length.log()
    return relative_log_normalizer(length, loc.shape[-1]) + log_d + length * cosine
