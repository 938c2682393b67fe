"""`pml-nivmf figures`: drawings that need no run."""

import argparse
from pathlib import Path

from .shared import Commands


def add(commands: Commands) -> None:
    command = commands.add_parser(
        "figures",
        help="draw the figures that need no run",
        description="Draw the figures that need no run: densities on the sphere, distances over angle and norm, the "
        "normalizer and its approximations; print the paths.",
    )
    command.add_argument("--dir", metavar="FOLDER", default="figures", help="where they go (default: %(default)s)")
    command.add_argument("--format", default="png,svg", help="png, svg or both (default: %(default)s)")
    command.add_argument("--dpi", type=int, default=200, help="pixels an inch, 6.9 inches wide (default: %(default)s)")
    command.set_defaults(run=_figures)


def _figures(options: argparse.Namespace) -> int:
    from ..checks import check_count
    from ..reports import figures

    check_count("--dpi", options.dpi)
    formats = figures.check_formats(options.format.split(","))
    for name, draw in figures.NEEDING_NO_RUN.items():
        for path in figures.save(draw(), Path(options.dir) / name, formats, options.dpi):
            print(path)
    return 0
