"""Losses against PML's own, a naive transcription and formulas worked out by hand."""

import math

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
from pml_nivmf.experiments.benchmarks.algorithm1 import algorithm1_loss
from pml_nivmf.losses import JointProxyLoss, NivMFProxyLoss, NonIsotropicVMFLoss, VMFProxyLoss

C, M, B = 6, 12, 10


@pytest.fixture
def batch():
    torch.manual_seed(0)
    return (4 * torch.randn(B, M, dtype=torch.float64)).requires_grad_(), torch.randint(0, C, (B,))


def roughened(loss):
    """Give concentrations and temperature values that are not all alike, in float64."""
    loss = loss.double()
    with torch.no_grad():
        for name, parameter in loss.named_parameters():
            if name.startswith("log_"):
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


@pytest.mark.parametrize(
    "distance", [ExpectedLikelihoodDistance, BhattacharyyaDistance, KLDistance, lambda: KLDistance("paper")]
)
def test_vmf_losses_are_softmax_over_distances(batch, distance):
    loss = roughened(VMFProxyLoss(C, M, distance=distance(), temperature=0.7, embedding_scale=2.5))
    embeddings, labels = batch
    proxies = F.normalize(loss.proxies, dim=1) * loss.concentration
    expected = F.cross_entropy(-distance()(2.5 * embeddings, proxies) / loss.temperature, labels)
    torch.testing.assert_close(loss(embeddings, labels), expected)
    torch.testing.assert_close(
        loss.get_logits(embeddings).log_softmax(1),
        (-distance()(2.5 * embeddings, proxies) / loss.temperature).log_softmax(1),
    )


def test_l2_proxies_enter_with_their_concentration(batch):
    distance = pml_distances.LpDistance(normalize_embeddings=False, power=2)
    loss = roughened(VMFProxyLoss(C, M, distance=distance, embedding_scale=1.0, initial_concentration=3.0))
    embeddings, labels = batch
    proxies = F.normalize(loss.proxies, dim=1) * loss.concentration
    squared = (embeddings.unsqueeze(1) - proxies).square().sum(-1)
    torch.testing.assert_close(loss(embeddings, labels), F.cross_entropy(-squared / loss.temperature, labels))


@pytest.mark.parametrize("normalizer", ["exact", "paper"])
@pytest.mark.parametrize("position", ["inside", "outside"])
def test_analytic_loss_is_softmax_over_the_distance(batch, normalizer, position):
    """At t = 1 inside and outside agree with the distance; outside does at every t."""
    options = {"normalizer": normalizer, "estimator": "analytic"}
    embeddings, labels = batch
    for temperature in (1.0, 0.4) if position == "outside" else (1.0,):
        loss = NonIsotropicVMFLoss(
            C, M, temperature=temperature, temperature_position=position, embedding_scale=1.0, **options
        ).double()
        with torch.no_grad():
            loss.log_concentration.add_(0.3 * torch.randn_like(loss.log_concentration))
        refs = pack_nivmf(F.normalize(loss.proxies, dim=1), loss.concentration)
        distances = ExpectedLikelihoodNivMFDistance(**options)(embeddings, refs)
        torch.testing.assert_close(loss(embeddings, labels), F.cross_entropy(-distances / temperature, labels))


def test_point_loss_is_softmax_over_the_density(batch):
    loss = roughened(NivMFProxyLoss(C, M, normalizer="exact", temperature=0.4))
    embeddings, labels = batch
    refs = pack_nivmf(F.normalize(loss.proxies, dim=1), loss.concentration)
    expected = F.cross_entropy(-NivMFDistance("exact")(embeddings, refs) / loss.temperature, labels)
    torch.testing.assert_close(loss(embeddings, labels), expected)


def fixed_noise_sampler(noise: torch.Tensor):
    """A stand-in for sampling whose draws depend on the image alone, so that two programs see the same samples."""

    def sample(natural, sample_shape=(), antithetic=False, generator=None):
        assert sample_shape == (len(noise),)
        shifts = noise.view(len(noise), *[1] * (natural.ndim - 1), natural.shape[-1])
        return F.normalize(natural + shifts, dim=-1)

    return sample


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_monte_carlo_loss_is_algorithm_1(batch, monkeypatch, temperature):
    sample = fixed_noise_sampler(torch.randn(5, M, dtype=torch.float64))
    monkeypatch.setattr("pml_nivmf.distances.expected_likelihood_nivmf.sample_vmf", sample)
    monkeypatch.setattr("pml_nivmf.experiments.benchmarks.algorithm1.sample_vmf", sample)
    loss = NonIsotropicVMFLoss(C, M, n_samples=5, normalizer="paper", temperature=temperature, embedding_scale=1.0)
    loss = roughened(loss)
    embeddings, labels = batch
    naive = algorithm1_loss(embeddings, labels, loss.proxies, loss.log_concentration, loss.temperature, 5)
    torch.testing.assert_close(loss(embeddings, labels), naive)
    wanted = [embeddings, *loss.parameters()]
    gradients = [torch.autograd.grad(value, wanted) for value in (loss(embeddings, labels), naive)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("normalizer", ["exact", "paper"])
def test_temperature_inside_and_outside(batch, monkeypatch, normalizer):
    noise = torch.randn(5, M, dtype=torch.float64)
    monkeypatch.setattr("pml_nivmf.distances.expected_likelihood_nivmf.sample_vmf", fixed_noise_sampler(noise))
    embeddings, _ = batch
    samples = fixed_noise_sampler(noise)(embeddings, (5,))
    for position in ("inside", "outside"):
        loss = NonIsotropicVMFLoss(
            C,
            M,
            n_samples=5,
            normalizer=normalizer,
            temperature=0.3,
            temperature_position=position,
            embedding_scale=1.0,
        )
        loss = roughened(loss)
        refs = pack_nivmf(F.normalize(loss.proxies, dim=1), loss.concentration)
        log_density = -torch.stack([NivMFDistance(normalizer)(x, refs) for x in samples])  # (N, B, C)
        if position == "inside":
            expected = torch.logsumexp(log_density / loss.temperature, 0)
        else:
            expected = torch.logsumexp(log_density, 0) / loss.temperature
        torch.testing.assert_close(loss.get_logits(embeddings).log_softmax(1), expected.log_softmax(1))


def test_joint_loss_is_the_weighted_sum_on_shared_proxies(batch):
    embeddings, labels = batch
    probabilistic = NonIsotropicVMFLoss(C, M, estimator="analytic").double()
    guidance = pml_losses.ProxyAnchorLoss(C, M).double()
    joint = JointProxyLoss(probabilistic, guidance, weight=3.0)
    assert guidance.proxies is probabilistic.proxies is joint.proxies
    value = joint(embeddings, labels)
    torch.testing.assert_close(value, probabilistic(embeddings, labels) + 3 * guidance(embeddings, labels))
    gradient = torch.autograd.grad(value, joint.proxies)[0]
    parts = [torch.autograd.grad(loss(embeddings, labels), joint.proxies)[0] for loss in (probabilistic, guidance)]
    torch.testing.assert_close(gradient, parts[0] + 3 * parts[1])


@pytest.mark.parametrize("name", ["Cos", "L2"])
def test_gradients_of_section_3_5(name):
    """∂L/∂cos_c = (softmax_c − [c = y])·∂(−d)/∂cos/t: 1/t for d_Cos, 2·κ_z·κ_c/t for d_L2."""
    torch.manual_seed(0)
    temperature, label = 0.5, 2
    for norm in (0.5, 2.0):
        embedding = (norm * F.normalize(torch.randn(1, M, dtype=torch.float64))).requires_grad_()
        if name == "Cos":
            distance = pml_distances.CosineSimilarity()
        else:
            distance = pml_distances.LpDistance(normalize_embeddings=False, power=2)
        options = {} if name == "Cos" else {"initial_concentration": 1.7}
        loss = VMFProxyLoss(C, M, distance=distance, temperature=temperature, embedding_scale=1.0, **options).double()
        (gradient,) = torch.autograd.grad(loss(embedding, torch.tensor([label])), embedding)
        softmax = loss.get_logits(embedding).softmax(1)[0].detach()
        slope = 1 / temperature if name == "Cos" else 2 * norm * 1.7 / temperature
        by_cosine = (softmax - F.one_hot(torch.tensor(label), C)) * slope  # ∂L/∂cos_c
        # ∂cos_c/∂z = (μ_c − cos_c·μ_z)/‖z‖, all of it tangential
        loc, proxies = F.normalize(embedding[0].detach(), dim=0), F.normalize(loss.proxies.detach(), dim=1)
        tangents = (proxies - (proxies @ loc).unsqueeze(1) * loc) / norm
        tangential = gradient[0] - (gradient[0] @ loc) * loc
        torch.testing.assert_close(tangential, by_cosine @ tangents)


def test_float32_keeps_the_precision_of_float64_at_small_temperatures():
    """log C_512 ≈ 870 would cost float32 1e-4/t; relative normalizers do not."""
    torch.manual_seed(0)
    for make in (VMFProxyLoss, lambda c, m, **k: NonIsotropicVMFLoss(c, m, estimator="analytic", **k)):
        loss = make(20, 512, temperature=0.01, initial_concentration=1.0)
        embeddings, labels = torch.randn(8, 512), torch.randint(0, 20, (8,))
        single = loss(embeddings, labels).item()
        double = loss.double()(embeddings.double(), labels).item()
        assert single == pytest.approx(double, rel=1e-4)


def test_starting_softmax_has_the_promised_scale():
    """κ₀·slope/t = 16: logits of a proxy and its opposite differ by 2·16."""
    for dim in (16, 512):
        losses = [
            VMFProxyLoss(2, dim),
            VMFProxyLoss(2, dim, distance=BhattacharyyaDistance()),
            VMFProxyLoss(2, dim, distance=KLDistance()),
            VMFProxyLoss(2, dim, distance=pml_distances.LpDistance(normalize_embeddings=False, power=2)),
            NivMFProxyLoss(2, dim),
            NonIsotropicVMFLoss(2, dim, estimator="analytic", temperature=0.3),
        ]
        for loss in losses:
            with torch.no_grad():
                loss.proxies[1] = -loss.proxies[0]
            logits = loss.get_logits(5 * F.normalize(loss.proxies.detach(), dim=1))
            assert (logits[0, 0] - logits[0, 1]).item() == pytest.approx(32, rel=0.12)


def test_chunks_change_nothing(batch):
    embeddings, labels = batch
    for make in (
        lambda **k: NonIsotropicVMFLoss(C, M, **k),
        lambda **k: NonIsotropicVMFLoss(C, M, concentration="shared", estimator="analytic", **k),
        lambda **k: NivMFProxyLoss(C, M, **k),
        lambda **k: VMFProxyLoss(C, M, **k),
        lambda **k: VMFProxyLoss(C, M, distance=pml_distances.CosineSimilarity(), **k),
    ):
        whole = make().double()
        for size in (1, 4, C, 100):
            chunked = make(chunk_size=size).double()
            chunked.load_state_dict(whole.state_dict())
            results = []
            for loss in (whole, chunked):
                torch.manual_seed(5)
                value = loss(embeddings, labels)
                results.append((value, *torch.autograd.grad(value, [embeddings, *loss.parameters()])))
            torch.testing.assert_close(*results)


def test_sampled_loss_is_unbiased_enough_to_follow_the_analytic_one():
    """With K = c·I the Monte-Carlo loss approaches the closed form as samples grow."""
    torch.manual_seed(0)
    embeddings, labels = torch.randn(32, 64), torch.randint(0, C, (32,))
    exact = NonIsotropicVMFLoss(C, 64, estimator="analytic")
    gaps = []
    for n_samples in (1, 16, 1024):
        sampled = NonIsotropicVMFLoss(C, 64, n_samples=n_samples)
        sampled.load_state_dict(exact.state_dict())
        values = torch.stack([sampled(embeddings, labels) for _ in range(5)])
        gaps.append((values.mean() - exact(embeddings, labels)).abs().item())
    assert gaps[2] < 0.02
    assert gaps[2] < gaps[1] < gaps[0]


def test_mean_cosine_rule_of_thumb():
    """The documented A ≈ 2c/(1 + √(1+4c²)) behind the starting norm: 0.88 at c = 4."""
    from pml_nivmf.functional import mean_resultant_length

    for c, expected in ((0.1, 0.10), (1.0, 0.62), (4.0, 0.88)):
        formula = 2 * c / (1 + math.sqrt(1 + 4 * c * c))
        assert mean_resultant_length(torch.tensor(c * 512.0), 512).item() == pytest.approx(formula, abs=0.003)
        assert formula == pytest.approx(expected, abs=0.006)
