"""Identify images by a gallery: print label or refusal, probability, and the enrolled images that spoke for it."""

import argparse
import csv
import io
from pathlib import Path

from .shared import add_plugin, load_plugins


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("gallery", metavar="GALLERY", help="a file that `pml-nivmf enrol` has written")
    command.add_argument("images", nargs="+", metavar="IMAGE", help="images, folders, or an .npz with `embeddings`")
    command.add_argument("--precision", type=float, default=0.95, help="share of right answers (default: %(default)s)")
    command.add_argument("--run", dest="run_dir", metavar="RUN", help="the run of the model, if its folder has moved")
    command.add_argument("--html", metavar="FILE", help="write a page of queries beside the images that spoke for them")
    command.add_argument("--csv", metavar="FILE", help="write a table")
    add_plugin(command)


def run(options: argparse.Namespace) -> None:
    from ..experiments.enrolment import identify, load_gallery
    from ..files import write_text
    from ..reports.page import write_sheet

    load_plugins(options)
    answers = identify(load_gallery(options.gallery, options.run_dir), [*map(Path, options.images)], options.precision)
    table = io.StringIO()
    rows = csv.writer(table, lineterminator="\n")
    rows.writerow(["image", "label", "probability", "known", "most_probable", "evidence"])
    for name, answer in answers.items():
        names = [image.name or str(image.row) for image in answer.evidence]
        label = f"refused, perhaps {answer.best}" if answer.label is None else answer.label
        print(f"{name}: {label}, {answer.probability:.0%}, by {', '.join(Path(path).name for path in names)}")
        numbers = [f"{answer.probability:.4f}", f"{answer.known:.4f}"]
        rows.writerow([name, "" if answer.label is None else label, *numbers, answer.best, "; ".join(names)])
    if options.csv:
        write_text(Path(options.csv), table.getvalue())
    if options.html:
        print(write_sheet(answers, Path(options.html)))
