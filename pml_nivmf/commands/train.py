"""Train on your own images, a folder with one folder per class: ProxyAnchor beside PANC + EL-nivMF, then a report.

Short for `compare own_images dataset.ImageFolder.root=FOLDER`; results go to runs/ under the folder's name.
"""

import argparse
import json
from pathlib import Path

from . import compare


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("folder", metavar="FOLDER", type=Path, help="contains one folder of images for each class")
    command.add_argument("overrides", nargs="*", metavar="key=value", help="changes to the configuration")
    command.add_argument("--weights", metavar="FILE", help="of timm's tf_efficientnet_lite0 (default: downloaded)")
    compare.add_options(command)


def run(options: argparse.Namespace) -> None:
    paths = {"dataset.ImageFolder.root": options.folder.resolve()}
    paths |= {"model.trunk.TimmTrunk.weights_file": options.weights} if options.weights else {}
    given = [f"{key}={json.dumps(str(path), ensure_ascii=False)}" for key, path in paths.items()]
    options.overrides = ["own_images", *given, *options.overrides]
    compare.run(options)
