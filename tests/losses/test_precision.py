"""float32 against float64, and norms that float16 cannot represent."""

import pytest
import torch
from pytorch_metric_learning import losses as pml_losses
from torch.nn import functional as F

from pml_nivmf.losses import JointProxyLoss, NonIsotropicVMFLoss

from .variants import SINGLE, fixed_noise_sampler

C, B = 6, 12


def value_logits_and_gradients(loss, embeddings, labels):
    embeddings = embeddings.detach().requires_grad_()
    value = loss(embeddings, labels)
    gradients = torch.autograd.grad(value, [embeddings, *loss.parameters()])
    return value.double(), loss.get_logits(embeddings).double().log_softmax(1), [g.double() for g in gradients]


@pytest.mark.parametrize("make", SINGLE.values(), ids=SINGLE.keys())
@pytest.mark.parametrize("dim", [8, 512])
def test_float32_is_within_1e_4_of_float64(make, dim, monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr("pml_nivmf.distances.nivmf.sample_vmf", fixed_noise_sampler(dim * torch.randn(5, dim)))
    embeddings, labels = torch.randn(B, dim), torch.randint(0, C, (B,))
    embeddings = F.normalize(embeddings, dim=1) * dim**0.5 * torch.linspace(0.2, 3, B)[:, None]
    single = make(C, dim)
    with torch.no_grad():
        for name, parameter in single.named_parameters():
            if name.startswith("log_"):
                parameter.add_(0.1 * torch.randn_like(parameter))
    single(embeddings, labels)  # sets the scale
    double = make(C, dim).double()
    double.load_state_dict(single.state_dict())
    value, logits, gradients = value_logits_and_gradients(single, embeddings, labels)
    exact_value, exact_logits, exact_gradients = value_logits_and_gradients(double, embeddings.double(), labels)
    assert abs(value - exact_value) < 1e-4 * max(1, abs(exact_value))
    assert (logits - exact_logits).abs().max() < 1e-4 * exact_logits.abs().max().clamp(min=1)
    for gradient, exact in zip(gradients, exact_gradients, strict=True):
        assert (gradient - exact).norm() < 1e-4 * exact.norm() + 1e-7


def test_float16_norms_larger_than_float16_are_fine():
    """‖z‖² of ordinary float16 embeddings overflows float16; nothing here computes it there."""
    embeddings = torch.full((B, 16), 6e4).half().requires_grad_()
    joint = JointProxyLoss(NonIsotropicVMFLoss(C, 16), pml_losses.ProxyAnchorLoss(C, 16))
    value = joint(embeddings, torch.arange(B) % C)
    value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(embeddings.grad).all()
