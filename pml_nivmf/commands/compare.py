"""`pml-nivmf compare`: several losses and seeds, and a table."""

import argparse
import json
import sys
from pathlib import Path

from ..experiments import interrupts
from .shared import Commands, add_plugin, load_plugins, loss_names, refuse_torchrun


def add(commands: Commands) -> None:
    command = commands.add_parser(
        "compare",
        help="several losses and seeds on the same data, and a table",
        description="Train the same data, model and schedule under several losses and seeds; print and save a table "
        "of mean ± deviation with 95% t-intervals, and a report to look at. Finished runs in the folder are kept, "
        "unfinished ones resumed.",
    )
    command.add_argument("overrides", nargs="+", metavar="NAME", help="experiments, and key=value overrides")
    command.add_argument(
        "--dry-run", action="store_true", help="print the composed configuration of every row and stop"
    )
    command.add_argument("--overwrite", action="store_true", help="run again what is in the folder")
    command.add_argument(
        "--losses", help="comma-separated loss variants or YAML files (default: the experiment's list)"
    )
    command.add_argument("--vary", metavar="KEY=V,V,…", help="also one row for each of these values of a key")
    command.add_argument("--seeds", type=int, help="seeds per loss (default: the experiment's own number, or 5)")
    command.add_argument("--jobs", type=int, help="runs at a time, one thread each (default: the number of cores)")
    command.add_argument("--dir", metavar="FOLDER", help="where runs and table go (default: runs/NAME)")
    add_plugin(command)
    command.set_defaults(run=_compare)


def _compare(options: argparse.Namespace) -> int:
    from ..checks import check_count
    from ..experiments import compare, config

    refuse_torchrun("compare")
    load_plugins(options)
    for name in ("seeds", "jobs"):
        if getattr(options, name) is not None:
            check_count(f"--{name}", getattr(options, name), at_least=1)
    overrides = [text for text in options.overrides if "=" in text or "~" in text]
    names = [text for text in options.overrides if text not in overrides]
    if not names:
        raise ValueError("name an experiment (see `pml-nivmf list`)")
    losses = loss_names(options.losses)
    plans: dict[str, tuple[Path, list[compare.Job]]] = {}
    for name in names:
        folder = Path(options.dir or "runs") / config.experiment_name(name)
        if folder in (other for other, _ in plans.values()):
            raise ValueError(f"{name}: two experiments would share the folder {folder}: rename one")
        anew = options.overwrite or options.dry_run  # what is in the folder is of no concern
        plans[name] = (folder, compare.plan(name, losses, options.seeds, overrides, folder, anew, options.vary))
    if options.dry_run:
        _print_plans([job for _, jobs in plans.values() for job in jobs])
        return 0
    for name, (folder, jobs) in plans.items():
        workers = options.jobs or compare.default_workers(len(jobs))
        try:
            with interrupts.remembered():
                rows = compare.run_jobs(jobs, workers, options.plugin)
                _show_comparison(config.experiment_name(name), folder, rows, [job.folder for job in jobs])
        except KeyboardInterrupt:
            print(f"\ninterrupted; the same command goes on with the runs in {folder}", file=sys.stderr)
            return interrupts.INTERRUPTED
    return 0


def _print_plans(jobs) -> None:  # type: ignore[no-untyped-def]
    """One YAML document a row of the table: its seeds differ in nothing else."""
    from ..experiments import config

    for rows_folder in dict.fromkeys(job.folder.parent for job in jobs):
        runs = [job for job in jobs if job.folder.parent == rows_folder]
        print(f"---\n# {runs[0].loss}, seeds {', '.join(str(job.seed) for job in runs)}")
        print(config.to_yaml(runs[0].config), end="")


def _show_comparison(name: str, folder: Path, rows, runs: list[Path]) -> None:  # type: ignore[no-untyped-def]
    from ..experiments import checkpoint, terminal
    from ..reports import tables
    from ..reports.page import write_report

    terminal.show_comparison(name, rows)
    checkpoint.write_text(folder / "comparison.md", tables.as_markdown(rows) + "\n")
    checkpoint.write_text(folder / "comparison.json", json.dumps(tables.as_json(rows), indent=1))
    print(f"{rows[0].seeds} {'seed' if rows[0].seeds == 1 else 'seeds'}, runs and tables in {folder}")
    print(f"report: {write_report(runs, folder / 'report.html')}")
