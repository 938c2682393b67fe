"""Speed benchmark: forward plus backward time and peak extra memory of losses, side by side in one run."""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pytorch_metric_learning import losses as pml_losses
from torch import Tensor, nn

from ...checks import check_count
from ...distances import BhattacharyyaDistance, KLDistance
from ...losses import JointProxyLoss, NivMFProxyLoss, NonIsotropicVMFLoss, VMFProxyLoss
from .algorithm1 import algorithm1_loss

BASELINE = "ProxyAnchorLoss"
# The transcription expands every image against every proxy: minutes and tens of gigabytes beyond this many pairs.
_TRANSCRIPTION_MAX_PAIRS = 50_000
_TRANSCRIPTION_ROUNDS = 5


class Shape(NamedTuple):
    batch: int
    classes: int
    dimensions: int
    samples: int


DEFAULT_SHAPES = [Shape(112, 100, 512, 5), Shape(112, 98, 128, 5), Shape(112, 11318, 512, 5)]


@dataclass(frozen=True)
class Result:
    """One loss at one shape; `ratio` is its time over ProxyAnchorLoss's in the same rounds."""

    loss: str
    batch: int
    classes: int
    dimensions: int
    samples: int
    milliseconds: float
    ratio: float
    peak_megabytes: float


def parse_shape(text: str) -> Shape:
    """B,C,M,N."""
    try:
        shape = Shape(*(int(part) for part in text.split(",")))
    except (TypeError, ValueError):
        raise ValueError(f"a shape is four integers B,C,M,N such as 112,100,512,5, got {text!r}") from None
    for name, value in shape._asdict().items():
        check_count(f"{name} in {text!r}", value, at_least=2 if name == "dimensions" else 1)
    return shape


def run(shapes: Sequence[Shape], rounds: int = 20, threads: int | None = None, device: str = "cpu") -> list[Result]:
    """Measure every loss at every shape. Rounds go round all losses, so that a slow phase of the machine hits all."""
    check_count("rounds", rounds, at_least=1)
    if threads is not None:
        torch.set_num_threads(check_count("threads", threads, at_least=1))
    target = device_named(device)
    return [result for shape in shapes for result in _run_shape(shape, rounds, target)]


def device_named(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"--device must be cpu, cuda or cuda:N, got {name!r}") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"--device {name}: torch sees no GPU here")
    return device


def _run_shape(shape: Shape, rounds: int, device: torch.device) -> list[Result]:
    print(f"measuring {_described(*shape)} …", file=sys.stderr, flush=True)
    torch.manual_seed(0)
    embeddings = torch.randn(shape.batch, shape.dimensions, device=device, requires_grad=True)
    labels = torch.randint(0, shape.classes, (shape.batch,), device=device)
    losses = {name: loss.to(device) for name, loss in _losses(shape).items()}
    steps = {name: training_step(loss, embeddings, labels) for name, loss in losses.items()}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for round_number in range(rounds + 1):
        for name, step in steps.items():
            if name.startswith("Algorithm 1") and round_number > _TRANSCRIPTION_ROUNDS:
                continue
            elapsed = timed(step, device)
            if round_number > 0:  # the first round warms caches and allocators
                seconds[name].append(elapsed)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    return [
        Result(name, *shape, 1e3 * medians[name], medians[name] / medians[BASELINE], peak_megabytes(step, device))
        for name, step in steps.items()
    ]


def _losses(shape: Shape) -> dict[str, nn.Module]:
    c, m, n = shape.classes, shape.dimensions, shape.samples
    losses: dict[str, nn.Module] = {
        "ProxyNCALoss": pml_losses.ProxyNCALoss(c, m),
        BASELINE: pml_losses.ProxyAnchorLoss(c, m),
        f"NonIsotropicVMFLoss, {n} samples": NonIsotropicVMFLoss(c, m, n_samples=n),
        f"NonIsotropicVMFLoss, {n} samples, paper": NonIsotropicVMFLoss(c, m, n_samples=n, normalizer="paper"),
        "NonIsotropicVMFLoss, analytic": NonIsotropicVMFLoss(c, m, estimator="analytic"),
        "NonIsotropicVMFLoss, analytic, paper": NonIsotropicVMFLoss(c, m, estimator="analytic", normalizer="paper"),
        "NivMFProxyLoss": NivMFProxyLoss(c, m),
        "VMFProxyLoss, EL": VMFProxyLoss(c, m),
        "VMFProxyLoss, Bhattacharyya": VMFProxyLoss(c, m, distance=BhattacharyyaDistance()),
        "VMFProxyLoss, KL": VMFProxyLoss(c, m, distance=KLDistance()),
        "JointProxyLoss, analytic + ProxyAnchor": JointProxyLoss(
            NonIsotropicVMFLoss(c, m, estimator="analytic"), pml_losses.ProxyAnchorLoss(c, m)
        ),
    }
    if shape.batch * shape.classes <= _TRANSCRIPTION_MAX_PAIRS:
        losses["Algorithm 1, transcribed"] = _Transcription(shape)
    return losses


class _Transcription(nn.Module):
    """Algorithm 1 with the parameters, starting values and embedding scale of `NonIsotropicVMFLoss`."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.fast = NonIsotropicVMFLoss(shape.classes, shape.dimensions, embedding_scale=4 * shape.dimensions**0.5)
        self.n_samples = shape.samples

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        fast = self.fast
        scaled = embeddings * fast.embedding_scale
        return algorithm1_loss(scaled, labels, fast.proxies, fast.log_concentration, fast.temperature, self.n_samples)


def training_step(loss: nn.Module, embeddings: Tensor, labels: Tensor) -> Callable[[], None]:
    def step() -> None:
        embeddings.grad = None
        loss.zero_grad(set_to_none=True)
        loss(embeddings, labels).backward()

    return step


def timed(step: Callable[[], None], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def peak_megabytes(step: Callable[[], None], device: torch.device) -> float:
    """Most memory allocated by torch at any time of one step, beyond what was there before it."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        step()
        return (torch.cuda.max_memory_allocated(device) - before) / 1e6
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    changes = sorted((e["ts"], e["args"]["Bytes"]) for e in events if e.get("name") == "[memory]")
    allocated = peak = 0
    for _, size in changes:
        allocated += size
        peak = max(peak, allocated)
    return peak / 1e6


def as_json(results: Sequence[Any]) -> str:
    return json.dumps([asdict(result) for result in results], indent=2)


def as_table(results: Sequence[Result]) -> str:
    """One block per shape: loss, time, time over ProxyAnchorLoss, peak extra memory."""
    lines = [f"forward + backward, {torch.get_num_threads()} threads, torch {torch.__version__}"]
    previous: tuple[int, ...] = ()
    for r in results:
        shape = (r.batch, r.classes, r.dimensions, r.samples)
        if shape != previous:
            lines += ["", _described(*shape)]
            lines += [f"  {'loss':<42} {'ms':>10} {'× ProxyAnchor':>14} {'peak MB':>9}"]
            previous = shape
        lines += [f"  {r.loss:<42} {r.milliseconds:>10.2f} {r.ratio:>14.2f} {r.peak_megabytes:>9.1f}"]
    return "\n".join(lines)


def _described(batch: int, classes: int, dimensions: int, samples: int) -> str:
    return f"batch {batch}, {classes} classes, {dimensions} dimensions, {samples} samples"
