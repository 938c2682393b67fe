"""Scaling benchmark: time and memory of one training step against the number of classes, in chunks and sampled."""

import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from pytorch_metric_learning import losses as pml_losses
from torch import nn

from ...checks import check_count
from ...losses import NonIsotropicVMFLoss
from .speed import BASELINE, device_named, peak_megabytes, timed, training_step

BATCH, DIMENSIONS, SAMPLES = 112, 128, 5
DEFAULT_CHUNK = 4096
NEGATIVES = 4096
_SECONDS_PER_LOSS = 10.0  # the largest sizes get few rounds: one step over a million classes takes that long
_UNCHUNKED_MAX_LOGITS = 20_000_000  # a loss without chunks keeps some ten tensors of this size


@dataclass(frozen=True)
class ClassResult:
    """One loss at one number of classes; `extra_megabytes` is the peak beyond parameters and their gradients."""

    classes: int
    loss: str
    milliseconds: float
    microseconds_per_class: float
    parameter_megabytes: float
    gradient_megabytes: float
    extra_megabytes: float


def parse_classes(text: str) -> list[int]:
    """100,1000,10000."""
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--classes takes integers such as 100,1000,10000, got {text!r}") from None
    return [check_count(f"--classes {text!r}: a number of classes", count, at_least=2) for count in counts]


def run(
    classes: Sequence[int],
    chunk_size: int = DEFAULT_CHUNK,
    rounds: int = 20,
    threads: int | None = None,
    device: str = "cpu",
) -> list[ClassResult]:
    """Measure each loss at each number of classes, one after the other, so that only one loss is in memory."""
    check_count("rounds", rounds)
    check_count("--chunk-size", chunk_size)
    if threads is not None:
        torch.set_num_threads(check_count("threads", threads))
    target = device_named(device)
    results = []
    for count in classes:
        for name, make in _losses(count, chunk_size).items():
            print(f"measuring {count} classes, {name} …", file=sys.stderr, flush=True)
            results.append(_measure(count, name, make, rounds, target))
    return results


def _losses(classes: int, chunk_size: int) -> dict[str, Callable[[], nn.Module]]:
    def ours(**options: object) -> Callable[[], nn.Module]:
        return lambda: NonIsotropicVMFLoss(classes, DIMENSIONS, n_samples=SAMPLES, **options)  # type: ignore[arg-type]

    losses: dict[str, Callable[[], nn.Module]] = {
        BASELINE: lambda: pml_losses.ProxyAnchorLoss(classes, DIMENSIONS),
        "EL-nivMF, all at once": ours(),
        "EL-nivMF, chunks": ours(chunk_size=chunk_size),
        "EL-nivMF analytic, all at once": ours(estimator="analytic"),
        "EL-nivMF analytic, chunks": ours(estimator="analytic", chunk_size=chunk_size),
        f"EL-nivMF, {NEGATIVES} negatives": ours(negative_samples=NEGATIVES, sparse=True),
    }
    if SAMPLES * BATCH * classes > _UNCHUNKED_MAX_LOGITS:
        del losses["EL-nivMF, all at once"]
    if BATCH * classes > _UNCHUNKED_MAX_LOGITS:
        del losses["EL-nivMF analytic, all at once"]
    return losses


def _measure(classes: int, name: str, make: Callable[[], nn.Module], rounds: int, device: torch.device) -> ClassResult:
    torch.manual_seed(0)
    loss = make().to(device)
    embeddings = torch.randn(BATCH, DIMENSIONS, device=device, requires_grad=True)
    step = training_step(loss, embeddings, torch.randint(0, classes, (BATCH,), device=device))
    step()  # warms caches and allocators
    seconds: list[float] = []
    while len(seconds) < rounds and sum(seconds) < _SECONDS_PER_LOSS:
        seconds.append(timed(step, device))
    loss.zero_grad(set_to_none=True)
    peak = peak_megabytes(step, device)
    gradients = sum(_megabytes(parameter.grad) for parameter in loss.parameters() if parameter.grad is not None)
    median = statistics.median(seconds)
    parameters = sum(_megabytes(parameter) for parameter in loss.parameters())
    return ClassResult(classes, name, 1e3 * median, 1e6 * median / classes, parameters, gradients, peak - gradients)


def _megabytes(tensor: torch.Tensor) -> float:
    values = tensor._values() if tensor.is_sparse else tensor
    return values.numel() * values.element_size() / 1e6


def as_table(results: Sequence[ClassResult]) -> str:
    """One block per number of classes."""
    lines = [
        f"forward + backward, batch {BATCH}, {DIMENSIONS} dimensions, {SAMPLES} samples, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}"
    ]
    previous = None
    for r in results:
        if r.classes != previous:
            header = f"  {'loss':<32} {'ms':>10} {'µs/class':>9} {'parameters':>11} {'gradients':>10} {'extra MB':>9}"
            lines += ["", f"{r.classes} classes", header]
            previous = r.classes
        lines.append(
            f"  {r.loss:<32} {r.milliseconds:>10.1f} {r.microseconds_per_class:>9.2f} {r.parameter_megabytes:>11.1f} "
            f"{r.gradient_megabytes:>10.1f} {r.extra_megabytes:>9.1f}"
        )
    return "\n".join(lines)
