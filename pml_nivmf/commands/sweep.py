"""Search the best settings of several losses by validation score, with one Optuna study per loss.

The space is in the experiment's `sweep` section. The same command continues a sweep that was killed.
"""

import argparse

from .shared import add_parallel, count, load_plugins, refuse_torchrun, results_folder


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("experiment", metavar="NAME", help="a name from `pml-nivmf list`, or the path of a YAML file")
    command.add_argument("overrides", nargs="*", metavar="key=value", help="changes to the configuration")
    command.add_argument("--trials", type=count, help="trials per loss (default: the experiment's number)")
    command.add_argument("--storage", metavar="URL", help="database for Optuna (default: SQLite in FOLDER/study.db)")
    command.add_argument("--reproduce-best", type=count, default=0, metavar="K", help="run the best with K new seeds")
    add_parallel(command)


def run(options: argparse.Namespace) -> None:
    from ..experiments import search_space, sweep

    refuse_torchrun()
    load_plugins(options)
    plans = search_space.plan(options.experiment, options.losses, options.overrides, options.trials)
    if options.dry_run:
        print(*map(search_space.describe, plans), sep="\n")
        return
    folder = results_folder(options, options.experiment, options.overrides, "sweeps")
    storage = options.storage or f"sqlite:///{(folder / 'study.db').absolute()}"
    results = sweep.run_searches(plans, folder, storage, options.overwrite, options.jobs, options.plugin)
    results = [sweep.run_finals(result, folder, options.jobs, options.plugin) for result in results]
    sweep.write_results(results, folder)
    if options.reproduce_best:
        sweep.reproduce(results, options.reproduce_best, folder, options.jobs, options.plugin)
