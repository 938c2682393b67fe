"""torch.compile of model and loss: one graph, the same values and gradients, faults are still reported."""

import shutil

import pytest
import torch
from torch import nn

from pml_nivmf.losses import FullSoftmax, NonIsotropicVMFLoss, SampledSoftmax

from .variants import SINGLE, sampled

C, M, B = 5, 32, 12  # from 26 dimensions on the Bessel ratios need no recurrence: smaller graphs
COMPILED = {
    "samples and negatives": lambda: NonIsotropicVMFLoss(
        C, M, distance=sampled(2), concentration="shared", softmax=SampledSoftmax(2)
    ),
    "deviations in chunks": lambda: NonIsotropicVMFLoss(
        C, M, concentration="shared_plus_deviation", softmax=FullSoftmax(3)
    ),
}
DOT = lambda: SINGLE["dot"](C, M)  # noqa: E731  a small graph


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def a_model(make, seed=0):
    torch.manual_seed(seed)
    head, loss = nn.Linear(8, M), make()
    return head, loss


def a_batch():
    generator = torch.Generator().manual_seed(3)
    return torch.randn(B, 8, generator=generator), torch.randint(0, C, (B,), generator=generator)


def train(make, backend, steps=2, **options):
    """Values, gradients of the last step and state after some steps of model and loss."""
    head, loss = a_model(make)

    def forward(images, labels):
        return loss(head(images), labels)

    run = forward if backend is None else torch.compile(forward, backend=backend, **options)
    parameters = [*head.parameters(), *loss.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=1e-3)
    torch.manual_seed(7)
    values = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = run(*a_batch())
        value.backward()
        optimizer.step()
        values.append(value.detach())
    return values, [parameter.grad for parameter in parameters], loss.state_dict(), loss


@pytest.mark.parametrize("make", COMPILED.values(), ids=COMPILED.keys())
def test_one_graph_with_the_values_of_eager(make):
    """fullgraph=True refuses any break, from the very first batch, which sets the embedding scale."""
    eager, compiled = train(make, None), train(make, "aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled[:3], eager[:3], rtol=1e-4, atol=1e-5)


def test_a_scale_set_in_a_graph_is_known_outside():
    loss = train(DOT, "aot_eager", steps=1, fullgraph=True)[3]
    embeddings = 100 * torch.randn(B, M)
    scale = loss.embedding_scale.clone()
    assert bool(loss.embedding_scale_is_set)
    logits = loss.get_logits(embeddings)
    loss(embeddings, a_batch()[1])
    assert torch.equal(loss.embedding_scale, scale), "eager must not calibrate again"
    torch.testing.assert_close(loss.get_logits(embeddings), logits)


def test_faults_are_found_in_a_graph():
    head, loss = a_model(DOT)
    run = torch.compile(lambda images, labels: loss(head(images), labels), backend="aot_eager", fullgraph=True)
    images, labels = a_batch()
    run(images, labels)
    with pytest.raises(RuntimeError, match=f"label is out of range for num_classes={C}"):
        run(images, labels + C)
    images[2, 3] = float("nan")
    with pytest.raises(RuntimeError, match="embeddings hold NaN"):
        run(images, labels)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="inductor needs a C++ compiler")
def test_inductor():
    make = COMPILED["deviations in chunks"]
    eager, compiled = train(make, None), train(make, "inductor", fullgraph=True)
    torch.testing.assert_close(compiled[:3], eager[:3], rtol=1e-4, atol=1e-5)
