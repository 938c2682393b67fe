"""`pml-nivmf bench`: time and memory."""

import argparse
import os

from .shared import Commands


def add(commands: Commands) -> None:
    bench = commands.add_parser(
        "bench",
        help="time and memory of every loss, side by side",
        description="Forward plus backward time and peak extra memory of PML's ProxyNCALoss and ProxyAnchorLoss, of "
        "this package's losses, and of a direct transcription of the paper's Algorithm 1, in one run.",
    )
    bench.add_argument(
        "--shape",
        action="append",
        metavar="B,C,M,N",
        help="batch, classes, dimensions, samples; may be repeated (default: three shapes like CUB and SOP)",
    )
    bench.add_argument(
        "--rounds", type=int, default=20, help="timed rounds; the median is shown (default: %(default)s)"
    )
    bench.add_argument(
        "--classes", metavar="C,C,…", help="measure against these numbers of classes instead, such as 100,10000,1000000"
    )
    bench.add_argument("--chunk-size", type=int, default=4096, help="with --classes: chunk_size (default: %(default)s)")
    bench.add_argument("--threads", type=int, default=None, help="CPU threads (default: torch's choice)")
    bench.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, … (default: %(default)s)")
    bench.add_argument("--json", action="store_true", help="print JSON instead of a table")
    bench.set_defaults(run=_run_bench)


def _run_bench(options: argparse.Namespace) -> int:
    for name, quiet in {"KINETO_LOG_LEVEL": "99", "TORCH_CPP_LOG_LEVEL": "ERROR"}.items():
        os.environ.setdefault(name, quiet)  # or torch's profiler, which measures memory, writes over the table

    from ..experiments.benchmarks import classes, speed

    if options.classes:
        counts = classes.parse_classes(options.classes)
        scaling = classes.run(counts, options.chunk_size, options.rounds, options.threads, options.device)
        print(speed.as_json(scaling) if options.json else classes.as_table(scaling))
        return 0
    shapes = [speed.parse_shape(text) for text in options.shape] if options.shape else speed.DEFAULT_SHAPES
    results = speed.run(shapes, rounds=options.rounds, threads=options.threads, device=options.device)
    print(speed.as_json(results) if options.json else speed.as_table(results))
    return 0
