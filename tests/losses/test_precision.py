"""float32 against float64, and models under autocast."""

import pytest
import torch
from pytorch_metric_learning import losses as pml_losses
from torch import nn
from torch.nn import functional as F

from pml_nivmf.functional.sampling import _draw, _Reparametrised
from pml_nivmf.losses import JointProxyLoss, NonIsotropicVMFLoss

from ..devices import DEVICES
from .variants import ALL, SINGLE

C, B = 6, 12


def each(variants):
    return pytest.mark.parametrize("make", variants.values(), ids=variants.keys())


def same_samples(natural, sample_shape=(), antithetic=False, generator=None):
    """Draws in float64, then rounded: both precisions see the same angles and tangents."""
    torch.manual_seed(5)
    flat = natural.detach().double()
    samples, angle = _draw(flat, sample_shape[0], antithetic, None)
    return _Reparametrised.apply(natural, samples.to(natural.dtype), angle.to(natural.dtype))


def value_logits_and_gradients(loss, embeddings, labels):
    embeddings = embeddings.detach().requires_grad_()
    value = loss(embeddings, labels)
    gradients = torch.autograd.grad(value, [embeddings, *loss.parameters()])
    return value.double(), loss.get_logits(embeddings).double().log_softmax(1), [g.double() for g in gradients]


@each(SINGLE)
@pytest.mark.parametrize("dim", [8, 128, 512])
def test_float32_is_within_1e_4_of_float64(make, dim, monkeypatch):
    monkeypatch.setattr("pml_nivmf.distances.expected_likelihood_nivmf.sample_vmf", same_samples)
    torch.manual_seed(0)
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


@each({name: ALL[name] for name in ("EL-nivMF", "EL-nivMF analytic", "EL-vMF", "nivMF", "PANC + EL-nivMF")})
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_training_under_autocast(make, dtype, device):
    """A model in half precision by autocast, the loss inside or outside of it: the same loss in float32."""
    torch.manual_seed(0)
    images, labels = torch.randn(B, 8, device=device), torch.randint(0, C, (B,), device=device)
    model, loss = nn.Linear(8, 16).to(device), make(C, 16).to(device)
    with torch.autocast(device, dtype=dtype):
        embeddings = model(images)
        assert embeddings.dtype == dtype
        loss(embeddings, labels)
        torch.manual_seed(1)
        inside = loss(embeddings, labels)
    torch.manual_seed(1)
    outside = loss(embeddings, labels)
    assert inside.dtype == outside.dtype == torch.float32
    assert torch.equal(inside, outside)
    inside.backward()
    assert all(torch.isfinite(p.grad).all() for p in [*model.parameters(), *loss.parameters()])
    assert {parameter.dtype for parameter in loss.parameters()} == {torch.float32}


def test_float16_overflow_is_the_models_and_is_named():
    """65504 is the largest float16: an embedding beyond it is infinite before the loss sees it."""
    embeddings = torch.full((B, 16), 1e5).half()
    with pytest.raises(ValueError, match="infinity, first in row 0"):
        NonIsotropicVMFLoss(C, 16)(embeddings, torch.zeros(B, dtype=torch.long))


def test_float16_norms_larger_than_float16_are_fine():
    """‖z‖² of ordinary float16 embeddings overflows float16; nothing here computes it there."""
    embeddings = torch.full((B, 16), 6e4).half().requires_grad_()
    joint = JointProxyLoss(NonIsotropicVMFLoss(C, 16), pml_losses.ProxyAnchorLoss(C, 16))
    value = joint(embeddings, torch.arange(B) % C)
    value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(embeddings.grad).all()
