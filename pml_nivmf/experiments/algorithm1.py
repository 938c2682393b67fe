"""The paper's Algorithm 1 written down line by line, image by image and proxy by proxy: the benchmark's yardstick.

It computes what `NonIsotropicVMFLoss(normalizer="paper", estimator="monte_carlo")` computes, and a test holds the two
together; nobody should train with it.
"""

import math

import torch
from torch import Tensor

from ..functional.sampling import sample_vmf
from ..functional.vmf import relative_log_normalizer


def algorithm1_loss(
    embeddings: Tensor, labels: Tensor, proxies: Tensor, log_concentration: Tensor, temperature: Tensor, n_samples: int
) -> Tensor:
    """Mean of −log softmax_c(log (1/N)·Σ_i ρ_c(z_i)^{1/t}) over the batch."""
    losses = []
    for embedding, label in zip(embeddings, labels, strict=True):
        samples = sample_vmf(embedding, (n_samples,), antithetic=n_samples > 1)  # z_i ~ ζ, (N, M)
        logits = []
        for proxy, log_kappa in zip(proxies, log_concentration, strict=True):
            log_density = nivmf_log_density(samples, proxy / proxy.norm(), log_kappa.exp())
            logits.append(torch.logsumexp(log_density / temperature, dim=0) - math.log(n_samples))
        losses.append(-torch.log_softmax(torch.stack(logits), dim=0)[label])
    return torch.stack(losses).mean()


def nivmf_log_density(samples: Tensor, loc: Tensor, concentration: Tensor) -> Tensor:
    """log ρ(z_i) − log C_M(0) = r(κ̃) + Σ log κ_m − log κ̃ + κ̃·cos(Kz_i, Kμ)."""
    stretched_loc = concentration * loc
    stretched_samples = concentration * samples
    length = stretched_loc.norm()
    cosine = torch.cosine_similarity(stretched_samples, stretched_loc.expand_as(stretched_samples), dim=-1)
    log_d = concentration.log().sum() - length.log()
    return relative_log_normalizer(length, loc.shape[-1]) + log_d + length * cosine
