"""Classes drawn from a model of which the true posterior is known."""

import torch
from torch.nn import functional as F

from pml_nivmf.inference import ClassGallery

DIM = 16


def enrol(embeddings, labels, prior=None):
    gallery = ClassGallery(prior)
    gallery.add(embeddings, labels)
    return gallery


def draw(classes: int, per_class: int, seed: int = 0, spread: float = 0.8, axes: int = 6):
    """(embeddings, labels, posterior of embeddings): Gaussian classes, three times as wide along the first axes."""
    generator = torch.Generator().manual_seed(seed)
    centres = F.normalize(torch.randn(classes, DIM, generator=generator))
    labels = torch.arange(classes).repeat_interleave(per_class)
    widths = torch.full((DIM,), spread / 3)
    widths[:axes] = spread
    embeddings = centres[labels] + widths * torch.randn(len(labels), DIM, generator=generator)

    def posterior(queries):
        return torch.softmax(-0.5 * ((queries[:, None] - centres) / widths).square().sum(-1), dim=1)

    return embeddings, labels, posterior


def halves(labels: torch.Tensor, shots: int):
    """Rows of the gallery, the first `shots` of each class, and of the queries, the others."""
    ranks = torch.cat([torch.arange(int(count)) for count in torch.bincount(labels)])
    return ranks < shots, ranks >= shots
