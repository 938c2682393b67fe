"""torch.compile of model and loss: one graph, the same values and gradients, faults still found."""

import shutil

import pytest
import torch
from pytorch_metric_learning import losses as pml_losses
from torch import nn

from pml_nivmf.distances import KLDistance
from pml_nivmf.losses import JointProxyLoss, NivMFProxyLoss, NonIsotropicVMFLoss, VMFProxyLoss

from .variants import SINGLE

C, M, B = 5, 32, 12  # from 26 dimensions on the Bessel ratios need no recurrence: smaller graphs


def _el_nivmf(**options):
    return lambda: NonIsotropicVMFLoss(C, M, n_samples=4, **options)


COMPILED = {
    "Monte Carlo": _el_nivmf(),
    "analytic exact deviations": _el_nivmf(
        estimator="analytic", normalizer="exact", concentration="shared_plus_deviation"
    ),
    "chunks of sampled negatives": lambda: NivMFProxyLoss(
        C, M, chunk_size=13, concentration="shared", negative_samples=2
    ),
    "EL-vMF": lambda: VMFProxyLoss(C, M),
}
MORE = {
    "Monte Carlo exact outside": _el_nivmf(normalizer="exact", temperature_position="outside"),
    "analytic": _el_nivmf(estimator="analytic"),
    "KL-vMF": lambda: VMFProxyLoss(C, M, distance=KLDistance()),
    "nivMF": lambda: NivMFProxyLoss(C, M, normalizer="exact"),
    "Cos": lambda: SINGLE["Cos"](C, M),
    "chunks": _el_nivmf(chunk_size=3),
}
DOT = lambda: SINGLE["dot"](C, M)  # noqa: E731  a small graph
each = pytest.mark.parametrize(
    "make",
    [
        *(pytest.param(make, id=name) for name, make in COMPILED.items()),
        *(pytest.param(make, id=name, marks=pytest.mark.slow) for name, make in MORE.items()),
    ],
)


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


def train(make, backend, steps=3, **options):
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


@each
def test_one_graph_with_the_values_of_eager(make):
    """fullgraph=True refuses any break, from the very first batch, which sets the embedding scale."""
    eager, compiled = train(make, None), train(make, "aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled[:3], eager[:3], rtol=1e-4, atol=1e-5)


def test_dynamo_explains_one_graph():
    head, loss = a_model(COMPILED["Monte Carlo"])
    explained = torch._dynamo.explain(lambda images, labels: loss(head(images), labels))(*a_batch())
    assert explained.graph_count == 1
    assert explained.graph_break_count == 0, explained.break_reasons


def test_a_scale_set_in_a_graph_is_known_outside():
    loss = train(DOT, "aot_eager", steps=1, fullgraph=True)[3]
    embeddings = 100 * torch.randn(B, M)
    scale = loss.embedding_scale.clone()
    assert bool(loss.embedding_scale_is_set)
    logits = loss.get_logits(embeddings)
    loss(embeddings, a_batch()[1])
    assert torch.equal(loss.embedding_scale, scale), "eager must not calibrate again"
    torch.testing.assert_close(loss.get_logits(embeddings), logits)
    other = DOT()
    other.load_state_dict(loss.state_dict())
    torch.testing.assert_close(other.get_logits(embeddings), logits)


@pytest.mark.slow
def test_a_joint_loss_breaks_only_where_pml_does():
    def make():
        return JointProxyLoss(MORE["analytic"](), pml_losses.ProxyAnchorLoss(C, M))

    eager, compiled = train(make, None), train(make, "eager")
    torch.testing.assert_close(compiled[:3], eager[:3], rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()
    head, loss = a_model(make)
    reasons = torch._dynamo.explain(lambda images, labels: loss(head(images), labels))(*a_batch()).break_reasons
    # a break within a `with` is met once more at the `with`, without a reason of its own
    places = [reason.user_stack[-1].filename for reason in reasons if reason.reason != "step_unsupported"]
    assert places
    assert all("pytorch_metric_learning" in place for place in places), places


def test_faults_are_found_in_a_graph():
    head, loss = a_model(MORE["nivMF"])
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
    eager, compiled = train(MORE["analytic"], None), train(MORE["analytic"], "inductor", fullgraph=True)
    torch.testing.assert_close(compiled[:3], eager[:3], rtol=1e-4, atol=1e-5)
