"""Measure time and memory of PML's proxy losses and this package's, forward plus backward, side by side."""

import argparse
import json
import os

from .shared import count, counts


def add_arguments(command: argparse.ArgumentParser) -> None:
    shapes = "batch, classes, dimensions, samples; may be repeated (default: three shapes like CUB and SOP)"
    command.add_argument("--shape", action="append", type=count, nargs=4, metavar=tuple("BCMN"), help=shapes)
    command.add_argument("--rounds", type=count, default=20, help="steps; the table has medians (default: 20)")
    command.add_argument("--classes", type=counts, metavar="C,C,…", help="measure EL-nivMF at these numbers of classes")
    steps = "time whole training steps of this timm model instead: --step resnet50 (32 images of 128 pixels)"
    command.add_argument("--step", metavar="MODEL", help=steps)
    command.add_argument("--chunk-size", type=count, default=4096, help="with --classes: chunk_size (default: 4096)")
    sizes = "measure a gallery next to faiss's search instead (default size: 100000 10000 128)"
    command.add_argument("--gallery", type=count, nargs="*", metavar="N", help=f"images, classes, dimensions: {sizes}")
    command.add_argument("--threads", type=count, help="CPU threads (default: torch's choice)")
    command.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, … (default: cpu)")
    command.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(options: argparse.Namespace) -> None:
    for name, quiet in {"KINETO_LOG_LEVEL": "99", "TORCH_CPP_LOG_LEVEL": "ERROR"}.items():
        os.environ.setdefault(name, quiet)  # or torch's profiler, which measures memory, writes over the table

    import torch

    from ..experiments import bench
    from ..experiments.build import pick_device

    if options.threads:
        torch.set_num_threads(options.threads)
    if options.gallery is not None and len(options.gallery) not in (0, 3):
        raise ValueError(f"--gallery takes images, classes and dimensions, or nothing, got {options.gallery}")
    device = pick_device(options.device)
    shapes = [bench.Shape(*numbers) for numbers in options.shape or bench.DEFAULT_SHAPES]
    if options.classes:
        shapes = [bench.Shape(112, classes, 128, 5) for classes in options.classes]
    if options.gallery is not None:
        what = "steps of a gallery, ratio: to the time of faiss's plain search"
        rows = bench.run_gallery(options.gallery or [100_000, 10_000, 128], min(options.rounds, 5))
    elif options.step:
        what = f"training steps of {options.step}, ratio: to the time with ProxyNCALoss"
        shapes = shapes if options.shape else [bench.STEP_SHAPE]
        rows = [row for shape in shapes for row in bench.run_steps(options.step, shape, options.rounds, device)]
    else:
        what = f"forward + backward, ratio: to the time of {bench.BASELINE}"
        rows = bench.run(shapes, options.rounds, device, options.chunk_size if options.classes else None)
    print(json.dumps(rows, indent=2)) if options.json else bench.show(rows, what)
