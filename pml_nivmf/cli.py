"""The command `pml-nivmf`: parses arguments and hands over; the work is in `experiments`."""

import argparse
import sys
from collections.abc import Sequence

from . import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 if it went well, 2 if its arguments were wrong."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except ValueError as error:
        print(f"pml-nivmf: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pml-nivmf", description="Probabilistic proxies for pytorch-metric-learning.")
    parser.add_argument("--version", action="version", version=f"pml-nivmf {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_bench(commands)
    return parser


def _add_bench(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
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
    bench.add_argument("--threads", type=int, default=None, help="CPU threads (default: torch's choice)")
    bench.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, … (default: %(default)s)")
    bench.add_argument("--json", action="store_true", help="print JSON instead of a table")
    bench.set_defaults(run=_run_bench)


def _run_bench(options: argparse.Namespace) -> int:
    from .experiments import bench  # imports torch and PML: not for --help

    shapes = [bench.parse_shape(text) for text in options.shape] if options.shape else bench.DEFAULT_SHAPES
    results = bench.run(shapes, rounds=options.rounds, threads=options.threads, device=options.device)
    print(bench.as_json(results) if options.json else bench.as_table(results))
    return 0
