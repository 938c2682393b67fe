"""`pml-nivmf bench`: time and memory."""

import argparse

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
    from ..experiments import bench, bench_classes

    if options.classes:
        counts = bench_classes.parse_classes(options.classes)
        scaling = bench_classes.run(counts, options.chunk_size, options.rounds, options.threads, options.device)
        print(bench.as_json(scaling) if options.json else bench_classes.as_table(scaling))
        return 0
    shapes = [bench.parse_shape(text) for text in options.shape] if options.shape else bench.DEFAULT_SHAPES
    results = bench.run(shapes, rounds=options.rounds, threads=options.threads, device=options.device)
    print(bench.as_json(results) if options.json else bench.as_table(results))
    return 0
