"""`pml-nivmf list`: what there is, a line each."""

import argparse

from .shared import Commands


def add(commands: Commands) -> None:
    command = commands.add_parser("list", help="experiments, datasets, models and losses, a line each")
    command.set_defaults(run=_list)


def _list(options: argparse.Namespace) -> int:
    from ..experiments import config_files as files

    folder = files.config_folder()
    sections = {"experiments": [(name, folder / f"{name}.yaml") for name in files.experiment_names()]}
    for group in ("dataset", "model", "loss", "miner", "optimizers", "schedule"):
        names = [name for name in files.variant_names(group) if name != "default"]
        sections[group] = [(name, folder / group / f"{name}.yaml") for name in names]
    for title, entries in sections.items():
        print(title)
        for name, path in entries:
            print(f"  {name:<26} {files.description_of(path)}")
    return 0
