"""Options that several commands share."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path


def add_plugin(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--plugin", action="append", default=[], metavar="FILE.py", help='a file that calls register("loss", MyLoss)'
    )


def refuse_torchrun() -> None:
    from ..experiments.distributed import is_launched

    if is_launched():
        raise ValueError("this command starts its own processes: start it without torchrun, which is for `run`")


def load_plugins(options: argparse.Namespace) -> None:
    from ..experiments import registry

    for plugin in options.plugin:
        registry.load_plugin(plugin)


def add_parallel(command: argparse.ArgumentParser) -> None:
    """Options of commands that run several losses in parallel."""
    command.add_argument("--losses", type=names, default=[], help="variants or YAML files (default: the experiment's)")
    command.add_argument("--dir", metavar="FOLDER", help="runs and tables go to FOLDER/NAME (default: runs/NAME-…)")
    command.add_argument("--jobs", type=count, default=os.cpu_count(), help="runs at a time (default: number of cores)")
    command.add_argument("--dry-run", action="store_true", help="print what would run and stop")
    command.add_argument("--overwrite", action="store_true", help="run again what is in the folder")
    add_plugin(command)


def results_folder(options: argparse.Namespace, experiment: str, overrides: Sequence[str], *parents: str) -> Path:
    """DIR/NAME, or else a folder below runs/ that is named after the experiment and what overrides change."""
    from ..experiments.config import experiment_name, name_with_overrides
    from ..experiments.run import MACHINE

    if options.dir:
        return Path(options.dir) / experiment_name(experiment)
    return Path("runs", *parents) / name_with_overrides(experiment, overrides, MACHINE)


def names(text: str) -> list[str]:
    return text.split(",")


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1, got {text!r}")
    return int(text)


def counts(text: str) -> list[int]:
    return [count(part) for part in text.split(",")]
