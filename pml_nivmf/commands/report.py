"""`pml-nivmf report`: a page to look at, from run folders."""

import argparse
from pathlib import Path

from .shared import Commands


def add(commands: Commands) -> None:
    command = commands.add_parser(
        "report",
        help="write a self-contained HTML page about runs",
        description="Write one HTML page about runs, to be opened in any browser without a network: results with "
        "intervals, curves, uncertainty, images, settings, how to reproduce.",
    )
    command.add_argument(
        "runs", nargs="+", metavar="RUN", help="run folders, or folders that hold some, such as runs/glyphs"
    )
    command.add_argument(
        "--out", metavar="FILE.html", help="(default: report.html in the folder, or here for several folders)"
    )
    command.set_defaults(run=_report)


def _report(options: argparse.Namespace) -> int:
    from ..reports.page import write_report

    default = (Path(options.runs[0]) if len(options.runs) == 1 else Path()) / "report.html"
    if options.out is None and default.is_symlink():  # a folder from anywhere could lead to a file of the user's
        raise ValueError(f"{default} is a link, which is not followed: remove it, or say where with --out")
    print(write_report(options.runs, options.out or default))
    return 0
