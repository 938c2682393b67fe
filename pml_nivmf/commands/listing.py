"""`pml-nivmf list`: all experiments and variants, one per line with a description."""

import argparse

from .shared import Commands


def add(commands: Commands) -> None:
    command = commands.add_parser("list", help="list experiments, datasets, models and losses")
    command.set_defaults(run=_list)


def _list(options: argparse.Namespace) -> int:
    from ..experiments.config import find_variant, variant_names

    for group in ("experiment", "dataset", "model", "loss", "miner", "optimizers", "schedule"):
        print(group)
        for name in (name for name in variant_names(group) if name != "default"):
            line = find_variant(group, name).read_text(encoding="utf-8").partition("\n")[0]
            description = line.removeprefix("# ").removeprefix("description: ").strip('"')
            print(f"  {name:<26} {description}")
    return 0
