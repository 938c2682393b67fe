"""`pml-nivmf report`: write an HTML page about runs."""

import argparse
from pathlib import Path

from .shared import Commands


def add(commands: Commands) -> None:
    help_text = "write one HTML page about runs, which needs no network: results, curves, images, settings"
    command = commands.add_parser("report", help=help_text, description=help_text)
    command.add_argument("runs", nargs="+", metavar="RUN", help="run folders, or folders that contain some")
    command.add_argument("--out", metavar="FILE.html", help="(default: report.html in RUN, or here for several)")
    command.set_defaults(run=_report)


def _report(options: argparse.Namespace) -> int:
    from ..reports.page import write_report

    folder = Path(options.runs[0]) if len(options.runs) == 1 else Path()
    print(write_report(options.runs, options.out or folder / "report.html"))
    return 0
