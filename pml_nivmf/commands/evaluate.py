"""Score the best weights of finished runs again, without training; print and save a table and a report.

Overrides change the evaluation: evaluation=l2, evaluation=diversity, evaluation.test_metrics=[NMI].
"""

import argparse
from pathlib import Path

from .shared import add_plugin, load_plugins


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("overrides", nargs="+", metavar="RUN", help="run folders, and key=value overrides")
    command.add_argument("--images", choices=("test", "train", "crops"), default="test", help="(default: test)")
    command.add_argument("--baseline", metavar="RUN", help="also draw norms, split by the errors of this run")
    command.add_argument("--dir", metavar="FOLDER", default="runs/evaluated", help="output (default: %(default)s)")
    add_plugin(command)


def run(options: argparse.Namespace) -> None:
    from ..experiments import compare, rescore
    from ..reports.figures import save
    from ..reports.run_folders import read_runs
    from ..reports.view import norms_by_errors_of

    load_plugins(options)
    folder, overrides = Path(options.dir), [text for text in options.overrides if "=" in text or "~" in text]
    runs = [Path(text) for text in options.overrides if text not in overrides]
    jobs = rescore.rescore(runs, overrides, folder, options.images)
    title = rescore.IMAGES[options.images]
    compare.write_results(f"{folder}, {title} as test items" if title else str(folder), jobs, folder)
    if options.baseline:
        figure = norms_by_errors_of(read_runs([Path(options.baseline)]).runs[0], read_runs([folder]))
        print(*save(figure, folder / "norms_by_errors_of_baseline"), sep="\n")
