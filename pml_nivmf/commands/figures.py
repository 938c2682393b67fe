"""Draw the figures that need no run: densities, distances and normalizers; or a metric against the weight ω."""

import argparse
from pathlib import Path

from .shared import count, names


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--dir", metavar="FOLDER", default="figures", help="output folder (default: %(default)s)")
    command.add_argument("--format", type=names, default="png,svg", help="(default: %(default)s)")
    command.add_argument("--omega", nargs="+", metavar="FOLDER", help="draw R@1 against ω: one line for each folder")
    command.add_argument("--dpi", type=count, default=200, help="pixels per inch (default: %(default)s)")


def run(options: argparse.Namespace) -> None:
    from ..checks import check_option
    from ..reports import figures
    from ..reports.figures.runs import weight_curves
    from ..reports.run_folders import read_runs
    from ..reports.view import weight_scores

    formats = [check_option("--format", name, figures.FORMATS) for name in options.format]
    figures_to_draw = figures.NEEDING_NO_RUN
    if options.omega:
        scores = {folder: weight_scores(read_runs([Path(folder)])) for folder in options.omega}
        figures_to_draw = {"omega": lambda: weight_curves(scores, "R@1")}
    for name, draw in figures_to_draw.items():
        print(*figures.save(draw(), Path(options.dir) / name, formats, options.dpi), sep="\n")
