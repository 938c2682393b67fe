"""`pml-nivmf sweep`: a search for the best settings."""

import argparse
import sys
from pathlib import Path

from ..experiments import interrupts
from .shared import Commands, add_plugin, load_plugins, loss_names, refuse_torchrun


def add(commands: Commands) -> None:
    command = commands.add_parser(
        "sweep",
        help="search the best settings of several losses by validation score",
        description="Search the space in the experiment's `sweep` section, one Optuna study a loss, by validation "
        "score only. The same command goes on where a killed sweep stopped.",
    )
    command.add_argument("experiment", metavar="NAME", help="a name from `pml-nivmf list`, or the path of a YAML file")
    command.add_argument("overrides", nargs="*", metavar="key=value", help="changes to the configuration")
    command.add_argument(
        "--losses", help="comma-separated loss variants or YAML files (default: the experiment's list)"
    )
    command.add_argument("--trials", type=int, help="trials per loss (default: the experiment's own number)")
    command.add_argument("--jobs", type=int, help="trials at a time, one thread each (default: the number of cores)")
    command.add_argument("--dir", metavar="FOLDER", help="where runs and tables go (default: runs/sweeps/NAME)")
    command.add_argument("--storage", metavar="URL", help="Optuna storage (default: SQLite in FOLDER/study.db)")
    command.add_argument("--reproduce-best", type=int, metavar="K", help="run the best settings again with K new seeds")
    command.add_argument("--dry-run", action="store_true", help="print studies, spaces and number of runs and stop")
    command.add_argument("--overwrite", action="store_true", help="forget earlier trials of these losses")
    add_plugin(command)
    command.set_defaults(run=_sweep)


def _sweep(options: argparse.Namespace) -> int:
    from ..checks import check_count
    from ..experiments import compare, config
    from ..experiments.sweeps import plan as plans
    from ..experiments.sweeps import report, reproduce, search
    from ..reports import tables

    refuse_torchrun("sweep")
    load_plugins(options)
    for name in ("trials", "jobs", "reproduce_best"):
        if getattr(options, name) is not None:
            check_count(f"--{name.replace('_', '-')}", getattr(options, name), at_least=1)
    losses = loss_names(options.losses)
    plan = plans.make_plan(options.experiment, losses, options.overrides, options.trials)
    if options.dry_run:
        print(report.describe(plan))
        return 0
    folder = Path(options.dir or Path("runs") / "sweeps" / config.experiment_name(options.experiment))
    storage = options.storage or f"sqlite:///{(folder / 'study.db').absolute()}"
    workers = options.jobs or compare.default_workers(sum(loss.count for loss in plan.losses))
    rows: list[tables.Row] = []
    try:
        with interrupts.remembered():
            if options.overwrite:
                search.forget(plan, folder, storage)
            results = search.run(plan, folder, storage, workers, options.plugin)
            if options.reproduce_best:
                report.save(plan, results, rows, folder)  # kept, whatever comes
                rows = reproduce.reproduce(plan, results, options.reproduce_best, folder, workers, options.plugin)
            report.report(plan, results, rows, folder)
    except KeyboardInterrupt:
        print(f"\ninterrupted; the same command goes on with the trials in {folder}", file=sys.stderr)
        return interrupts.INTERRUPTED
    return 0
