"""Time and memory of losses, forward plus backward, and times of whole training steps, side by side in one run."""

import itertools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from pytorch_metric_learning import losses as pml_losses
from torch import nn

from ..distances import BhattacharyyaDistance, ExpectedLikelihoodNivMFDistance, KLDistance
from ..losses import FullSoftmax, JointProxyLoss, NivMFProxyLoss, NonIsotropicVMFLoss, SampledSoftmax, VMFProxyLoss
from ..losses.softmax import Softmax

BASELINE = "ProxyAnchorLoss"
_IN_STEPS = ("ProxyNCALoss", "NonIsotropicVMFLoss", "JointProxyLoss")  # the first is what others are compared with
_NEGATIVES = 4096
_SECONDS_PER_LOSS = 10.0  # one step over a million classes takes that long: few rounds


class Shape(NamedTuple):
    batch: int
    classes: int
    dimensions: int
    samples: int

    def __str__(self) -> str:
        return f"{self.batch} images, {self.classes:,} classes, {self.dimensions} dimensions, {self.samples} samples"


STEP_SHAPE = Shape(32, 100, 512, 5)
_PIXELS = 128  # height and width of the images of a training step
DEFAULT_SHAPES = [Shape(112, 100, 512, 5), Shape(112, 98, 128, 5), Shape(112, 11318, 512, 5)]
LossFactory: TypeAlias = Callable[[], nn.Module]
Row: TypeAlias = dict[str, Any]  # the loss, the fields of its shape, and what was measured


def _el_nivmf(shape: Shape, softmax: Softmax | None = None, **options: Any) -> NonIsotropicVMFLoss:
    distance = ExpectedLikelihoodNivMFDistance(shape.samples, **{"estimator": "monte_carlo"} | options)
    return NonIsotropicVMFLoss(shape.classes, shape.dimensions, distance=distance, softmax=softmax)


def losses_at(shape: Shape) -> dict[str, LossFactory]:
    """Every loss of the package, and PML's baselines."""
    c, m, n = shape.classes, shape.dimensions, shape.samples
    return {
        "ProxyNCALoss": lambda: pml_losses.ProxyNCALoss(c, m),
        BASELINE: lambda: pml_losses.ProxyAnchorLoss(c, m),
        f"NonIsotropicVMFLoss, {n} samples": lambda: _el_nivmf(shape),
        f"NonIsotropicVMFLoss, {n} samples, paper": lambda: _el_nivmf(shape, normalizer="paper"),
        "NonIsotropicVMFLoss, analytic": lambda: _el_nivmf(shape, estimator="analytic"),
        "NonIsotropicVMFLoss, second order": lambda: _el_nivmf(shape, estimator="second_order"),
        "NonIsotropicVMFLoss, analytic, paper": lambda: _el_nivmf(shape, estimator="analytic", normalizer="paper"),
        "NivMFProxyLoss": lambda: NivMFProxyLoss(c, m),
        "VMFProxyLoss, EL": lambda: VMFProxyLoss(c, m),
        "VMFProxyLoss, Bhattacharyya": lambda: VMFProxyLoss(c, m, distance=BhattacharyyaDistance()),
        "VMFProxyLoss, KL": lambda: VMFProxyLoss(c, m, distance=KLDistance()),
        "JointProxyLoss, analytic + ProxyAnchor": lambda: JointProxyLoss(
            _el_nivmf(shape, estimator="analytic"), pml_losses.ProxyAnchorLoss(c, m)
        ),
    }


def softmaxes_at(shape: Shape, chunk_size: int) -> dict[str, LossFactory]:
    """EL-nivMF with the softmaxes for many classes."""
    chunks, sampled = FullSoftmax(chunk_size), SampledSoftmax(_NEGATIVES, sparse=True)
    return {
        BASELINE: lambda: pml_losses.ProxyAnchorLoss(shape.classes, shape.dimensions),
        "EL-nivMF, chunks": lambda: _el_nivmf(shape, softmax=chunks),
        "EL-nivMF analytic, chunks": lambda: _el_nivmf(shape, estimator="analytic", softmax=chunks),
        f"EL-nivMF, {_NEGATIVES} negatives": lambda: _el_nivmf(shape, softmax=sampled),
    }


def run(shapes: Sequence[Shape], rounds: int, device: torch.device, chunk_size: int | None = None) -> list[Row]:
    """Measure every loss at every shape or, with a chunk size, every softmax of EL-nivMF.

    `ratio` is the time over that of ProxyAnchorLoss.
    """
    # Once 28 MB were freed, glibc keeps freed memory, as in a training. Otherwise page faults dominate some losses.
    torch.ones(7_000_000)
    rows: list[Row] = []
    for shape in shapes:
        groups = [losses_at(shape)]
        if chunk_size is not None:  # one after the other: more may not fit in memory
            groups = [{name: make} for name, make in softmaxes_at(shape, chunk_size).items()]
        new = [row for losses in groups for row in _measure(losses, shape, rounds, device)]
        (baseline,) = (row["milliseconds"] for row in new if row["loss"] == BASELINE)
        rows += [row | {"ratio": row["milliseconds"] / baseline} for row in new]
    return rows


def _measure(losses: dict[str, LossFactory], shape: Shape, rounds: int, device: torch.device) -> list[Row]:
    """Time and memory of each loss. Each round runs all losses, so that a slow phase of the machine hits all."""
    print(f"measuring {shape}: {', '.join(losses)} …", file=sys.stderr, flush=True)
    modules = {name: make().to(device) for name, make in losses.items()}
    steps = {name: training_step(loss, shape, device) for name, loss in modules.items()}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds + 1):
        for name, step in steps.items():
            if sum(seconds[name][1:]) < _SECONDS_PER_LOSS:
                seconds[name].append(timed(step, device))
    times = {name: 1e3 * statistics.median(values[1:]) for name, values in seconds.items()}  # the first warms caches
    return [
        {"loss": name, **shape._asdict(), "milliseconds": times[name]} | _memory(loss, steps[name], device)
        for name, loss in modules.items()
    ]


def _memory(loss: nn.Module, step: Callable[[], None], device: torch.device) -> dict[str, float]:
    """Megabytes: the most that a step allocates, and the same without gradients."""
    loss.zero_grad(set_to_none=True)
    peak = peak_megabytes(step, device)
    gradients = [parameter.grad for parameter in loss.parameters() if parameter.grad is not None]
    stored = [gradient._values() if gradient.is_sparse else gradient for gradient in gradients]
    return {"peak_megabytes": peak, "extra_megabytes": peak - sum(values.nbytes for values in stored) / 1e6}


def training_step(loss: nn.Module, shape: Shape, device: torch.device) -> Callable[[], None]:
    torch.manual_seed(0)
    embeddings = torch.randn(shape.batch, shape.dimensions, device=device, requires_grad=True)
    labels = torch.randint(0, shape.classes, (shape.batch,), device=device)

    def step() -> None:
        embeddings.grad = None
        loss.zero_grad(set_to_none=True)
        loss(embeddings, labels).backward()

    return step


def now(device: torch.device) -> float:
    """Seconds, after the device has finished what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def timed(step: Callable[[], None], device: torch.device) -> float:
    start = now(device)
    step()
    return now(device) - start


def peak_megabytes(step: Callable[[], None], device: torch.device) -> float:
    """Most memory allocated by torch at any time of one step, beyond what was allocated before it."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        step()
        return (torch.cuda.max_memory_allocated(device) - before) / 1e6
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    allocated = itertools.accumulate(e.nbytes() for e in sorted(events, key=lambda e: e.start_ns()))
    return max(0, *allocated) / 1e6


def run_steps(trunk: str, shape: Shape, rounds: int, device: torch.device) -> list[Row]:
    """Time training steps of a timm model: forward, loss, backward and Adam, the losses in turn.

    Steps differ in the part of the loss, its backward and its Adam: `ratio`, to ProxyNCALoss, is that of steps of equal
    length otherwise, because the rest varies more from step to step than losses do.
    """
    from ..models import EmbeddingHead, TimmTrunk

    features = TimmTrunk(trunk, pretrained=False)
    network = nn.Sequential(features, EmbeddingHead(features.num_features, shape.dimensions)).to(device).train()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-5)
    images = torch.randn(shape.batch, 3, _PIXELS, _PIXELS, device=device)
    labels = torch.arange(shape.batch, device=device) % shape.classes

    def step(loss: nn.Module, loss_optimizer: torch.optim.Optimizer) -> tuple[float, float]:
        start = now(device)
        embeddings = network(images)
        leaf = embeddings.detach().requires_grad_()
        before = now(device)
        loss(leaf, labels).backward()
        loss_optimizer.step()
        after = now(device)
        embeddings.backward(leaf.grad)
        optimizer.step()
        for each in (optimizer, loss_optimizer):
            each.zero_grad()
        return 1e3 * (now(device) - start), 1e3 * (after - before)

    losses = {name: make().to(device) for name, make in losses_at(shape).items() if name.startswith(_IN_STEPS)}
    optimizers = {name: torch.optim.Adam(loss.parameters(), lr=1e-3) for name, loss in losses.items()}
    times = [{name: step(loss, optimizers[name]) for name, loss in losses.items()} for _ in range(rounds + 1)][1:]
    medians = {
        name: [statistics.median(part) for part in zip(*(t[name] for t in times), strict=True)] for name in losses
    }
    whole, base = medians[_IN_STEPS[0]]
    return [
        {"loss": name, **shape._asdict(), "milliseconds": total, "loss_milliseconds": part}
        | {"ratio": 1 + (part - base) / whole}
        for name, (total, part) in medians.items()
    ]


def show(rows: Sequence[Row], what: str) -> None:
    """Print what was measured, one table for each shape."""
    print(f"{what}; {torch.get_num_threads()} threads")
    columns = [key for key in rows[0] if key not in ("loss", *Shape._fields)]
    for shape, group in itertools.groupby(rows, key=lambda row: Shape(*(row[key] for key in Shape._fields))):
        titles = "".join(
            f"{column.replace('_megabytes', ' MB').replace('_milliseconds', ' ms'):>13}" for column in columns
        )
        print(f"\n{shape}\n{'loss':<39}{titles}")
        for row in group:
            print(f"{row['loss']:<39}" + "".join(f"{row[column]:>13,.3f}" for column in columns))
