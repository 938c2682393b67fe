"""Enrol classes that a run's model has never seen, from a folder of images per class, in a gallery."""

import argparse
from pathlib import Path

from .shared import add_plugin, load_plugins


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("run_dir", metavar="RUN", help="the folder of a finished run")
    command.add_argument("source", metavar="FOLDER", help="FOLDER/CLASS/IMAGE, or an .npz with `embeddings`, `labels`")
    command.add_argument("--to", metavar="FILE", default="gallery.safetensors", help="(default: %(default)s)")
    add_plugin(command)


def run(options: argparse.Namespace) -> None:
    from ..experiments.enrolment import enrol

    load_plugins(options)
    gallery = enrol(Path(options.run_dir), Path(options.source), Path(options.to))
    print(f"{options.to}: {len(gallery)} images of {len(gallery.labels)} classes")
