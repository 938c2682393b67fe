"""Write one HTML page about runs, which needs no network: results, curves, images, settings."""

import argparse
from pathlib import Path


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("runs", nargs="+", metavar="RUN", help="run folders, or folders that contain some")
    command.add_argument("--out", metavar="FILE.html", help="(default: report.html in RUN, or here for several)")


def run(options: argparse.Namespace) -> None:
    from ..reports.page import write_report

    folder = Path(options.runs[0]) if len(options.runs) == 1 else Path()
    print(write_report(options.runs, options.out or folder / "report.html"))
