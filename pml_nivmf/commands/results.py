"""`pml-nivmf results`: RESULTS.md, computed from the summaries of runs that are kept beside it."""

import argparse
from pathlib import Path

from .shared import Commands


def add(commands: Commands) -> None:
    command = commands.add_parser(
        "results",
        help="write RESULTS.md from kept run summaries",
        description="Write experiment_configs/RESULTS.md from its template and the summaries kept in "
        "experiment_configs/results/runs; with --collect, first take the summaries of finished runs from a folder.",
    )
    command.add_argument("--collect", action="append", default=[], metavar="FOLDER", help="a folder of run folders")
    command.set_defaults(run=_results)


def _results(options: argparse.Namespace) -> int:
    from ..experiments.checkpoint import write_text
    from ..experiments.config_files import config_folder
    from ..reports import results

    home = config_folder()
    template, kept = home / "results" / "RESULTS.template.md", home / "results" / "runs"
    if not template.exists():
        raise ValueError(f"there is no {template}: an installed package has no results, use a checkout")
    for source in map(Path, options.collect):
        print(f"{results.collect(source, kept)} summaries from {source}")
    write_text(home / "RESULTS.md", results.write(template, kept))
    print(home / "RESULTS.md")
    return 0
