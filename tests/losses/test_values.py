"""Losses against PML's own and formulas worked out by hand."""

import pytest
import torch
from pytorch_metric_learning import distances as pml_distances
from pytorch_metric_learning import losses as pml_losses
from torch.nn import functional as F

from pml_nivmf.distances import (
    BhattacharyyaDistance,
    ExpectedLikelihoodDistance,
    ExpectedLikelihoodNivMFDistance,
    KLDistance,
    NivMFDistance,
    pack_nivmf,
)
from pml_nivmf.losses import FullSoftmax, JointProxyLoss, NivMFProxyLoss, NonIsotropicVMFLoss, VMFProxyLoss

from .variants import fixed_noise_sampler, sampled

C, M, B = 6, 12, 10
PAPER = ExpectedLikelihoodNivMFDistance(normalizer="paper")


@pytest.fixture
def batch():
    torch.manual_seed(0)
    return (4 * torch.randn(B, M, dtype=torch.float64)).requires_grad_(), torch.randint(0, C, (B,))


def roughened(loss):
    """Give concentrations and temperature values that are not all alike, in float64."""
    loss = loss.double()
    with torch.no_grad():
        for name, parameter in loss.named_parameters():
            if name.startswith("log_") and parameter.requires_grad:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return loss


@pytest.mark.parametrize("scale", [1.0, 16.0])
@pytest.mark.parametrize("distance", [pml_distances.CosineSimilarity, lambda: pml_distances.LpDistance(power=2)])
def test_cosine_and_normalised_l2_are_pmls_proxy_nca(batch, scale, distance):
    ours = VMFProxyLoss(C, M, distance=distance(), temperature=1 / scale, learnable_temperature=False).double()
    theirs = pml_losses.ProxyNCALoss(C, M, distance=distance(), softmax_scale=scale).double()
    theirs.proxies = ours.proxies
    torch.testing.assert_close(ours(*batch), theirs(*batch))
    gradients = [torch.autograd.grad(loss(*batch), [batch[0], ours.proxies]) for loss in (ours, theirs)]
    torch.testing.assert_close(*gradients)


def l2():
    return pml_distances.LpDistance(normalize_embeddings=False, power=2)


@pytest.mark.parametrize(
    ("kind", "distance", "temperature", "options"),
    [
        (VMFProxyLoss, ExpectedLikelihoodDistance(), 0.7, {}),
        (VMFProxyLoss, BhattacharyyaDistance(), 0.7, {}),
        (VMFProxyLoss, KLDistance(), 0.7, {}),
        (VMFProxyLoss, KLDistance("paper"), 0.7, {}),
        (VMFProxyLoss, l2(), 0.7, {}),
        (NivMFProxyLoss, NivMFDistance(), 0.4, {}),
        (NonIsotropicVMFLoss, ExpectedLikelihoodNivMFDistance(), 1.0, {"learnable_temperature": False}),
        (NonIsotropicVMFLoss, PAPER, 0.4, {"temperature_position": "outside"}),
    ],
)
def test_losses_are_softmax_over_distances(batch, kind, distance, temperature, options):
    """With the temperature inside of the expected likelihood at t = 1 only."""
    loss = roughened(kind(C, M, distance=distance, temperature=temperature, embedding_scale=2.5, **options))
    embeddings, labels = batch
    directions = F.normalize(loss.proxies, dim=1)
    nivmf = kind is not VMFProxyLoss
    proxies = pack_nivmf(directions, loss.concentration) if nivmf else directions * loss.concentration
    distances = distance(2.5 * embeddings, proxies)
    logits = -distances / loss.temperature
    torch.testing.assert_close(loss(embeddings, labels), F.cross_entropy(logits, labels))
    torch.testing.assert_close(loss.get_logits(embeddings).log_softmax(1), logits.log_softmax(1))
    torch.testing.assert_close(distance(2.5 * embeddings, loss.references()), distances)


@pytest.mark.parametrize("normalizer", ["exact", "paper"])
@pytest.mark.parametrize("position", ["inside", "outside"])
def test_monte_carlo_losses_by_their_samples(batch, monkeypatch, normalizer, position):
    """With the paper's normalizer, Algorithm 1 of the paper (inside) and its Eq. 6 (outside)."""
    sample = fixed_noise_sampler(torch.randn(5, M, dtype=torch.float64))
    monkeypatch.setattr("pml_nivmf.distances.nivmf.sample_vmf", sample)
    options = {"temperature": 0.3, "temperature_position": position, "embedding_scale": 1.0}
    loss = roughened(NonIsotropicVMFLoss(C, M, distance=sampled(5, normalizer=normalizer), **options))
    embeddings, labels = batch
    refs = pack_nivmf(F.normalize(loss.proxies, dim=1), loss.concentration)
    samples = sample(embeddings, (5,))
    log_density = -torch.stack([NivMFDistance(normalizer)(x, refs) for x in samples])  # (N, B, C)
    inside, outside = (loss.temperature, 1.0) if position == "inside" else (1.0, loss.temperature)
    expected = F.cross_entropy(torch.logsumexp(log_density / inside, 0) / outside, labels)
    torch.testing.assert_close(loss(embeddings, labels), expected)
    wanted = [embeddings, *loss.parameters()]
    gradients = [torch.autograd.grad(value, wanted) for value in (loss(embeddings, labels), expected)]
    torch.testing.assert_close(*gradients)


def test_joint_loss_is_the_weighted_sum_on_shared_proxies(batch):
    embeddings, labels = batch
    probabilistic = NonIsotropicVMFLoss(C, M).double()
    guidance = pml_losses.ProxyAnchorLoss(C, M).double()
    joint = JointProxyLoss(probabilistic, guidance, weight=3.0)
    assert guidance.proxies is probabilistic.proxies is joint.proxies
    value = joint(embeddings, labels)
    torch.testing.assert_close(value, probabilistic(embeddings, labels) + 3 * guidance(embeddings, labels))
    gradient = torch.autograd.grad(value, joint.proxies)[0]
    parts = [torch.autograd.grad(loss(embeddings, labels), joint.proxies)[0] for loss in (probabilistic, guidance)]
    torch.testing.assert_close(gradient, parts[0] + 3 * parts[1])


def test_starting_softmax_has_the_promised_scale():
    """κ₀·slope/t = 16: logits of a proxy and its opposite differ by 2·16."""
    for dim in (16, 512):
        losses = [
            VMFProxyLoss(2, dim),
            VMFProxyLoss(2, dim, distance=BhattacharyyaDistance()),
            VMFProxyLoss(2, dim, distance=KLDistance()),
            VMFProxyLoss(2, dim, distance=l2()),
            NivMFProxyLoss(2, dim),
            NonIsotropicVMFLoss(2, dim, temperature=0.3),
        ]
        for loss in losses:
            with torch.no_grad():
                loss.proxies[1] = -loss.proxies[0]
            embeddings = 5 * F.normalize(loss.proxies.detach(), dim=1)
            loss(embeddings, torch.arange(2))  # sets the scale
            logits = loss.get_logits(embeddings)
            assert (logits[0, 0] - logits[0, 1]).item() == pytest.approx(32, rel=0.12)


@pytest.mark.parametrize("make", [NonIsotropicVMFLoss, NivMFProxyLoss, VMFProxyLoss])
@pytest.mark.parametrize("chunk_size", [None, 2])
def test_distances_collect_their_statistics(batch, make, chunk_size):
    """PML's norms of queries and references, as if the loss had called distance(query, references) once."""
    embeddings, labels = batch
    kind = type(make(C, M).distance)
    options = {"embedding_scale": 2.0, "distance": kind(collect_stats=True), "softmax": FullSoftmax(chunk_size)}
    loss = roughened(make(C, M, collect_stats=True, **options))
    loss(embeddings, labels)
    assert loss.avg_query_norm == pytest.approx(2 * embeddings.norm(dim=1).mean().item())
    assert loss.current_temperature == pytest.approx(loss.temperature.item())
    expected = kind(collect_stats=True)
    expected(2 * embeddings, loss.references())
    for name in ("initial_avg_query_norm", "final_avg_query_norm", "initial_avg_ref_norm", "final_avg_ref_norm"):
        assert getattr(loss.distance, name) == pytest.approx(getattr(expected, name)) != 0


def test_default_distances():
    """Closed form with the exact normalizer is the default in one place, the distance."""
    distance = NonIsotropicVMFLoss(C, M).distance
    assert (distance.estimator, distance.normalizer) == ("analytic", "exact")
    assert NivMFProxyLoss(C, M).distance.normalizer == "exact"
    with pytest.raises(AssertionError, match="requires the distance metric to be NivMFReferenceDistance"):
        NonIsotropicVMFLoss(C, M, distance=pml_distances.CosineSimilarity())
