"""List experiments, datasets, models and losses, one per line with a description."""

import argparse


def add_arguments(command: argparse.ArgumentParser) -> None:
    """This command has none."""


def run(options: argparse.Namespace) -> None:
    from ..experiments.config import find_variant, variant_names

    for group in ("experiment", "dataset", "model", "loss", "miner", "optimizers", "schedule"):
        print(group)
        for name in (name for name in variant_names(group) if name != "default"):
            line = find_variant(group, name).read_text(encoding="utf-8").partition("\n")[0]
            description = line.removeprefix("# ").removeprefix("description: ").strip('"')
            print(f"  {name:<26} {description}")
