"""Draw the figures that need no run: densities, distances and normalizers."""

import argparse
from pathlib import Path

from .shared import count, names


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--dir", metavar="FOLDER", default="figures", help="output folder (default: %(default)s)")
    command.add_argument("--format", type=names, default="png,svg", help="(default: %(default)s)")
    command.add_argument("--dpi", type=count, default=200, help="pixels per inch (default: %(default)s)")


def run(options: argparse.Namespace) -> None:
    from ..checks import check_option
    from ..reports import figures

    formats = [check_option("--format", name, figures.FORMATS) for name in options.format]
    for name, draw in figures.NEEDING_NO_RUN.items():
        print(*figures.save(draw(), Path(options.dir) / name, formats, options.dpi), sep="\n")
