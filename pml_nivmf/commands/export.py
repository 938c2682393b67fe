"""Write the model of a finished run as one file that runs without this package: images to raw embeddings.

In Python: torch.export.load("model.pt").module()(images), with images (batch, channels, height, width) of the size that
the run was tested with and any batch size. The embeddings are not normalised: their norms are certainties.
"""

import argparse
from pathlib import Path

from .shared import add_plugin, load_plugins


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("run_dir", metavar="RUN", help="the folder of a finished run")
    command.add_argument("target", metavar="FILE", help="the file to write, such as model.pt")
    add_plugin(command)


def run(options: argparse.Namespace) -> None:
    from ..experiments.load import export

    load_plugins(options)
    shape = export(Path(options.run_dir), Path(options.target))
    print(f"{options.target}: inputs (batch, {', '.join(map(str, shape))})")
