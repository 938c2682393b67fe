"""Train the same data, model and schedule under several losses and seeds; print and save a table and a report.

Finished runs in the folder are reused, unfinished ones resumed.
"""

import argparse

from .shared import add_parallel, count, load_plugins, refuse_torchrun, results_folder


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("overrides", nargs="+", metavar="NAME", help="experiments, and key=value overrides")
    add_options(command)


def add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--vary", metavar="KEY=V,V,…", default="", help="one row for each of these values of a key")
    command.add_argument("--seeds", type=count, help="seeds per loss (default: the experiment's number, or 5)")
    add_parallel(command)


def run(options: argparse.Namespace) -> None:
    from ..experiments import compare, config, rescore

    refuse_torchrun()
    load_plugins(options)
    overrides = [text for text in options.overrides if "=" in text or "~" in text]
    names = {config.experiment_name(text): text for text in options.overrides if text not in overrides}
    if not names or len(names) + len(overrides) < len(options.overrides):
        raise ValueError("name one or more experiments with different names (see `pml-nivmf list`)")
    folders = {name: results_folder(options, text, overrides) for name, text in names.items()}
    plans = {
        name: compare.plan(experiment, options.losses, options.seeds, overrides, folders[name], options.vary)
        for name, experiment in names.items()
    }
    jobs = [job for plan in plans.values() for job in plan]
    if options.dry_run:
        rows = {job.folder.parent: job for job in reversed(jobs)}  # the first seed of each
        for job in reversed(rows.values()):
            print(f"---\n# {job.label}\n{config.to_yaml(job.config)}", end="")
        return
    compare.run_jobs(jobs, options.jobs, options.plugin, options.overwrite)
    for name, plan in plans.items():
        compare.write_results(folders[name].name, [*plan, *rescore.concatenate(plan)], folders[name])
