"""Write RESULTS.md from results/runs.csv and results/tuned.yaml, and add finished runs to these."""

import argparse
from pathlib import Path


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--collect", nargs="+", action="extend", default=[], metavar="STUDY", help="folders of runs")


def run(options: argparse.Namespace) -> None:
    from ..experiments.config import config_folder
    from ..files import write_text
    from ..reports import results

    page, folder = config_folder() / "RESULTS.md", config_folder() / "results"
    if not (folder / "runs.csv").exists():
        raise ValueError(f"{folder / 'runs.csv'} is missing: use a checkout, an installed package has no results")
    runs, searches = results.read(folder)
    for study in map(Path, options.collect):
        if not study.is_dir():
            raise ValueError(f"--collect {study}: there is no such folder")
        collected, tuned = results.collect_runs(study), results.collect_tuned(study)
        print(f"{len(collected)} runs from {study}")
        runs += collected
        if tuned:
            searches.setdefault(study.resolve().name, {}).update(tuned)
    results.write(folder, runs, searches)
    write_text(page, results.write_page(folder))
    print(page)
