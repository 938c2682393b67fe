"""Time and memory of losses, and times of galleries: always beside a baseline, in one run."""

import itertools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from pytorch_metric_learning import losses as pml_losses
from torch import nn
from torch.nn import functional as F

from ..distances import BhattacharyyaDistance, ExpectedLikelihoodNivMFDistance, KLDistance
from ..inference import ClassGallery
from ..losses import FullSoftmax, JointProxyLoss, NivMFProxyLoss, NonIsotropicVMFLoss, SampledSoftmax, VMFProxyLoss
from ..losses.softmax import Softmax

BASELINE = "ProxyAnchorLoss"
_CHUNK_SIZE = _NEGATIVES = 4096
_SECONDS_PER_STEP = 10.0  # one step over a million classes takes that long: few rounds


class Shape(NamedTuple):
    batch: int
    classes: int
    dimensions: int
    samples: int

    def __str__(self) -> str:
        return f"{self.batch} images, {self.classes:,} classes, {self.dimensions} dimensions, {self.samples} samples"


DEFAULT_SHAPES = [Shape(112, 100, 512, 5), Shape(112, 98, 128, 5), Shape(112, 11318, 512, 5)]
_QUERIES, _ADDED = 256, 1000  # of galleries
LossFactory: TypeAlias = Callable[[], nn.Module]
Step: TypeAlias = Callable[[], object]
Row: TypeAlias = dict[str, Any]  # the loss and the fields of its shape, or the step, and what was measured


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


def softmaxes_at(shape: Shape) -> dict[str, LossFactory]:
    """EL-nivMF with the softmaxes for many classes."""
    chunks, sampled = FullSoftmax(_CHUNK_SIZE), SampledSoftmax(_NEGATIVES, sparse=True)
    return {
        BASELINE: lambda: pml_losses.ProxyAnchorLoss(shape.classes, shape.dimensions),
        "EL-nivMF, chunks": lambda: _el_nivmf(shape, softmax=chunks),
        "EL-nivMF analytic, chunks": lambda: _el_nivmf(shape, estimator="analytic", softmax=chunks),
        f"EL-nivMF, {_NEGATIVES} negatives": lambda: _el_nivmf(shape, softmax=sampled),
    }


def run(shapes: Sequence[Shape], rounds: int, device: torch.device, many_classes: bool = False) -> list[Row]:
    """Measure every loss or, for many classes, every softmax of EL-nivMF; `ratio`: to the time of ProxyAnchorLoss."""
    # Once 28 MB were freed, glibc keeps freed memory, as in a training. Otherwise page faults dominate some losses.
    torch.ones(7_000_000)
    rows: list[Row] = []
    for shape in shapes:
        groups = [losses_at(shape)]
        if many_classes:  # one after the other: more may not fit in memory
            groups = [{name: make} for name, make in softmaxes_at(shape).items()]
        new = [row for losses in groups for row in _measure(losses, shape, rounds, device)]
        baseline = next(row["milliseconds"] for row in new if row["loss"] == BASELINE)
        rows += [row | {"ratio": row["milliseconds"] / baseline} for row in new]
    return rows


def _measure(losses: dict[str, LossFactory], shape: Shape, rounds: int, device: torch.device) -> list[Row]:
    print(f"measuring {shape}: {', '.join(losses)} …", file=sys.stderr, flush=True)
    modules = {name: make().to(device) for name, make in losses.items()}
    steps = {name: training_step(loss, shape, device) for name, loss in modules.items()}
    times = median_seconds(steps, rounds)
    return [
        {"loss": name, **shape._asdict(), "milliseconds": 1e3 * times[name]} | _memory(loss, steps[name], device)
        for name, loss in modules.items()
    ]


def training_step(loss: nn.Module, shape: Shape, device: torch.device) -> Step:
    torch.manual_seed(0)
    embeddings = torch.randn(shape.batch, shape.dimensions, device=device, requires_grad=True)
    labels = torch.randint(0, shape.classes, (shape.batch,), device=device)

    def step() -> None:
        embeddings.grad = None
        loss.zero_grad(set_to_none=True)
        loss(embeddings, labels).backward()

    return step


def median_seconds(steps: dict[str, Step], rounds: int) -> dict[str, float]:
    """Median time of each step. Each round runs all steps, so that a slow phase of the machine hits all."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds + 1):
        for name, step in steps.items():
            if sum(seconds[name][1:]) < _SECONDS_PER_STEP:
                seconds[name].append(_seconds(step))
    return {name: statistics.median(values[1:]) for name, values in seconds.items()}  # the first warms caches


def _seconds(step: Step) -> float:
    synchronize: Step = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    synchronize()
    start = time.perf_counter()
    step()
    synchronize()
    return time.perf_counter() - start


def _memory(loss: nn.Module, step: Step, device: torch.device) -> dict[str, float]:
    """Megabytes: the most that a step allocates, and the same without gradients."""
    loss.zero_grad(set_to_none=True)
    peak = peak_megabytes(step, device)
    gradients = [parameter.grad for parameter in loss.parameters() if parameter.grad is not None]
    stored = [gradient._values() if gradient.is_sparse else gradient for gradient in gradients]
    return {"peak_megabytes": peak, "extra_megabytes": peak - sum(values.nbytes for values in stored) / 1e6}


def peak_megabytes(step: Step, device: torch.device) -> float:
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


def run_gallery(size: Sequence[int], rounds: int) -> list[Row]:
    """Seconds of the steps of a gallery of `size`, (images, classes, dimensions); answers beside faiss's search."""
    import faiss

    images, classes, dimensions = size
    faiss.omp_set_num_threads(torch.get_num_threads())
    torch.manual_seed(0)
    labels, noise = torch.arange(images) % classes, 1.5 / dimensions**0.5
    embeddings = F.normalize(torch.randn(classes, dimensions))[labels] + noise * torch.randn(images, dimensions)
    queries = embeddings[:_QUERIES] + noise * torch.randn_like(embeddings[:_QUERIES])
    gallery, plain, units = ClassGallery(), faiss.IndexFlatIP(dimensions), F.normalize(queries).numpy()
    plain.add(F.normalize(embeddings).numpy())
    once: dict[str, Step] = {
        f"enrol {images:,} images of {classes:,} classes": lambda: gallery.add(embeddings, labels),
        "fit": gallery.fit,
        "first query, which builds the index": lambda: gallery.identify(queries[:1]),
    }
    seconds = {name: _seconds(step) for name, step in once.items()}
    search, identify = (f"{name}, {len(units)} queries" for name in ("nearest neighbours by faiss", "identify"))
    answers: dict[str, Step] = {search: lambda: plain.search(units, 1), identify: lambda: gallery.identify(queries)}
    seconds |= median_seconds(answers, rounds)
    gallery.add(embeddings[:_ADDED], labels[:_ADDED])
    seconds[f"query after {_ADDED:,} more, without fit"] = _seconds(lambda: gallery.identify(queries[:1]))
    ratio = {identify: {"ratio": seconds[identify] / seconds[search]}}
    return [{"step": name, "seconds": value} | ratio.get(name, {}) for name, value in seconds.items()]


def show(rows: Sequence[Row], what: str) -> None:
    """Print what was measured, one table for each shape."""
    print(f"{what}; {torch.get_num_threads()} threads")
    for shape, group in itertools.groupby(rows, key=lambda row: [row[key] for key in Shape._fields if key in row]):
        table = list(group)
        label, *columns = (key for key in {key: None for row in table for key in row} if key not in Shape._fields)
        titles = (column.replace("_megabytes", " MB") for column in columns)
        print(f"\n{Shape(*shape)}" if shape else "")
        print(f"{label:<52}" + "".join(f"{title:>13}" for title in titles))
        for row in table:
            values = (f"{row[column]:,.3f}" if column in row else "" for column in columns)
            print(f"{row[label]:<52}" + "".join(f"{value:>13}" for value in values))
