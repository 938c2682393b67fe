"""How commands are declared: functions whose docstring is the help, below the arguments that they take."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

Run = Callable[[argparse.Namespace], None]
Argument = tuple[tuple[str, ...], dict[str, Any]]
COMMANDS: dict[str, tuple[Run, tuple[Argument, ...]]] = {}


def command(name: str, *arguments: Argument) -> Callable[[Run], Run]:
    """Make the decorated function the command `pml-nivmf NAME`."""

    def add(function: Run) -> Run:
        COMMANDS[name] = function, arguments
        return function

    return add


def argument(*names: str, **options: Any) -> Argument:
    """What argparse's `add_argument` takes."""
    return names, options


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1, got {text!r}")
    return int(text)


def existing(text: str) -> Path:
    if not Path(text).expanduser().exists():
        raise argparse.ArgumentTypeError(f"{text} does not exist")
    return Path(text).expanduser()


# `cli` loads these files before it calls the command.
PLUGIN = argument(
    "--plugin", action="append", default=[], metavar="FILE.py", help='a file that calls register("loss", MyLoss)'
)
OVERRIDES = argument("overrides", nargs="*", default=[], metavar="key=value", help="changes to the configuration")
# Of commands that run several losses in parallel.
PARALLEL = (
    argument("--losses", type=lambda text: text.split(","), default=[], help="names or files (default: experiment's)"),
    argument("--dir", metavar="FOLDER", help="results: FOLDER/NAME (default: runs/NAME-…, sweeps: runs/sweeps/NAME-…)"),
    argument("--jobs", type=count, default=os.cpu_count(), help="runs at a time (default: number of cores)"),
    argument("--dry-run", action="store_true", help="print what would run and stop"),
    argument("--overwrite", action="store_true", help="run again what is in the folder"),
    PLUGIN,
)
