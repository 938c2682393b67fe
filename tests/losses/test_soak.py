"""A long training: memory does not grow, and the same seed gives the same bits."""

import gc
import resource
import sys

import pytest
import torch
from pytorch_metric_learning import losses as pml_losses
from torch import nn

from pml_nivmf.losses import JointProxyLoss, NonIsotropicVMFLoss, VMFProxyLoss

C, M, B, FEATURES = 60, 32, 32, 24
MEGABYTE = 1e6 if sys.platform == "darwin" else 1e3  # ru_maxrss counts bytes there, kilobytes elsewhere
LOSSES = {
    "Monte Carlo": lambda: NonIsotropicVMFLoss(C, M, n_samples=4),
    "chunks of sampled negatives": lambda: NonIsotropicVMFLoss(
        C, M, estimator="analytic", chunk_size=25, negative_samples=20, concentration="shared"
    ),
    "deviations, joint": lambda: JointProxyLoss(
        NonIsotropicVMFLoss(C, M, estimator="analytic", concentration="shared_plus_deviation"),
        pml_losses.ProxyAnchorLoss(C, M),
    ),
    "EL-vMF": lambda: VMFProxyLoss(C, M),
}
each = pytest.mark.parametrize("make", LOSSES.values(), ids=LOSSES.keys())


def train(make, steps, watch=None):
    """(states of head and loss, values) after some steps from seed 0; `watch` is called after each step."""
    torch.manual_seed(0)
    labels = torch.arange(C).repeat(10)
    features = torch.randn(C, FEATURES)[labels] + 0.5 * torch.randn(len(labels), FEATURES)
    head, loss = nn.Linear(FEATURES, M), make()
    optimizer = torch.optim.Adam([{"params": head.parameters(), "lr": 1e-3}, *loss.param_groups(1e-3)])
    values = []
    for step in range(steps):
        picked = torch.randint(0, len(labels), (B,))
        optimizer.zero_grad()
        value = loss(head(features[picked]), labels[picked])
        value.backward()
        optimizer.step()
        values.append(value.item())
        if watch is not None:
            watch(step)
    return [*head.state_dict().values(), *loss.state_dict().values()], values


def assert_same_bits(make, steps):
    first, second = train(make, steps), train(make, steps)
    assert first[1] == second[1]
    assert all(torch.equal(a, b) for a, b in zip(first[0], second[0], strict=True))


@each
def test_the_same_seed_gives_the_same_bits(make):
    assert_same_bits(make, steps=40)


@pytest.mark.slow
@each
def test_two_thousand_steps_twice(make):
    assert_same_bits(make, steps=2000)


def living_tensors():
    gc.collect()
    return sum(isinstance(thing, torch.Tensor) for thing in gc.get_objects())


@pytest.mark.slow
@each
def test_two_thousand_steps_without_growth(make):
    tensors, peaks = {}, {}

    def watch(step):
        if step in (300, 1999):
            tensors[step] = living_tensors()
            peaks[step] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MEGABYTE

    _, values = train(make, 2000, watch)
    assert tensors[1999] <= tensors[300]
    assert peaks[1999] - peaks[300] < 5, "megabytes of the process's peak"
    assert sum(values[-50:]) < 0.5 * sum(values[:50]), "it trained all along"
