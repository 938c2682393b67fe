"""On an accelerator the host never waits for a value: no `.item()`, no `bool(tensor)`, no shape that depends on values.

There may be no GPU here. The forward runs on a fake CUDA device, whose tensors have no values to ask for. Autograd
cannot run there without a driver, so that forward and backward together run on CPU tensors that the package takes for
an accelerator's, with a dispatch mode that raises where the host would wait.
"""

from functools import partial

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from pml_nivmf.distances import pack_nivmf
from pml_nivmf.losses import FullSoftmax, JointProxyLoss, NonIsotropicVMFLoss, SampledSoftmax, ShardedSoftmax

from ..distances.variants import each
from .variants import SINGLE, sampled

C, M, B = 5, 16, 12
WAITS = {
    torch.ops.aten._local_scalar_dense,
    torch.ops.aten.is_nonzero,
    torch.ops.aten.nonzero,
    torch.ops.aten.masked_select,
    torch.ops.aten._unique2,
    torch.ops.aten.unique_dim,
    torch.ops.aten.equal,
}
BY_INDEX = {torch.ops.aten.index, torch.ops.aten.index_put, torch.ops.aten.index_put_}
LOSSES = SINGLE | {
    "joint": lambda c, m: JointProxyLoss(NonIsotropicVMFLoss(c, m), SINGLE["Cos"](c, m)),  # PML's losses wait
    "chunks": partial(NonIsotropicVMFLoss, softmax=FullSoftmax(2)),
    "negatives": partial(NonIsotropicVMFLoss, softmax=SampledSoftmax(2)),
    "sparse": partial(NonIsotropicVMFLoss, softmax=SampledSoftmax(2, sparse=True)),
    "sharded": partial(NonIsotropicVMFLoss, softmax=ShardedSoftmax(2)),
}


class NoWaiting(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        masks = func.overloadpacket in BY_INDEX and any(i is not None and i.dtype == torch.bool for i in args[1])
        if func.overloadpacket in WAITS or masks:
            raise AssertionError(f"{func} makes the host wait")
        return func(*args, **(kwargs or {}))


@pytest.fixture
def accelerator(monkeypatch):
    for module in ("finite", "sampling"):
        monkeypatch.setattr(f"pml_nivmf.functional.{module}.is_readable", lambda tensor: False)
    monkeypatch.setattr("pml_nivmf.losses.embeddings.is_readable", lambda tensor: False)
    torch.manual_seed(0)


@each(LOSSES)
def test_losses(accelerator, make):
    """Two steps: the first one calibrates the scale."""
    loss = make(C, M)
    with NoWaiting():
        for _ in range(2):
            embeddings, labels = torch.randn(B, M, requires_grad=True), torch.arange(B) % C
            value = loss(embeddings, labels)
            value.backward()
            loss.get_logits(embeddings)
    assert torch.isfinite(value)
    assert all(torch.isfinite(parameter.grad.to_dense()).all() for parameter in loss.parameters())


def test_the_mode_finds_what_it_looks_for():
    values = torch.randn(3)
    for wait in (lambda: values[0].item(), lambda: bool(values.all()), lambda: values[values > 0], values.unique):
        with NoWaiting(), pytest.raises(AssertionError, match="makes the host wait"):
            wait()


@each(SINGLE)
def test_forward_on_a_fake_gpu(make):
    loss = make(C, M)
    with FakeTensorMode(allow_non_fake_inputs=True):
        loss = loss.to("cuda")
        value = loss(torch.randn(B, M, device="cuda"), torch.arange(B, device="cuda") % C)
        assert value.device.type == "cuda"
        with pytest.raises(DataDependentOutputException):
            value.item()


def test_faults_are_asserted_asynchronously(accelerator):
    loss = NonIsotropicVMFLoss(C, M, distance=sampled())
    embeddings, labels = torch.randn(B, M), torch.arange(B) % C
    with pytest.raises(RuntimeError, match="a label is out of range for num_classes=5"):
        loss(embeddings, labels + 1)
    embeddings[3, 4] = float("nan")
    with pytest.raises(RuntimeError, match="embeddings hold NaN, infinity or a norm"):
        loss(embeddings, labels)
    with pytest.raises(RuntimeError, match="nivMF concentrations must be positive"):
        pack_nivmf(torch.ones(2, M), torch.zeros(2, M))
