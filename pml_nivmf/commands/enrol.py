"""The commands that use a trained model: enrol and identify, for classes it has never seen, and export."""

import argparse
import csv
import io
from pathlib import Path

from .arguments import PLUGIN, argument, command, existing


@command(
    "enrol",
    argument("run_dir", metavar="RUN", type=existing, help="the folder of a finished run"),
    argument("source", metavar="FOLDER", type=existing, help="FOLDER/CLASS/IMAGE, or .npz with `embeddings`, `labels`"),
    argument("--to", metavar="FILE", default="gallery.safetensors", help="(default: %(default)s)"),
    PLUGIN,
)
def enrol(options: argparse.Namespace) -> None:
    """Enrol classes that a run's model has never seen, from a folder of images per class, in a gallery."""
    from ..experiments.enrolment import enrol

    gallery = enrol(options.run_dir, options.source, Path(options.to))
    print(f"{options.to}: {len(gallery)} images of {len(gallery.labels)} classes")


@command(
    "identify",
    argument("gallery", metavar="GALLERY", type=existing, help="a file that `pml-nivmf enrol` has written"),
    argument("images", nargs="+", metavar="IMAGE", type=existing, help="images, folders, or an .npz with `embeddings`"),
    argument("--precision", type=float, default=0.95, help="accuracy to aim at, for enrolled classes (default: 0.95)"),
    argument("--run", dest="run_dir", metavar="RUN", help="the run of the model, if its folder has moved"),
    argument("--html", metavar="FILE", help="write a page of queries beside the images that support them"),
    argument("--csv", metavar="FILE", help="write a table"),
    PLUGIN,
)
def identify(options: argparse.Namespace) -> None:
    """Identify images by a gallery: print label or refusal, and the enrolled images that support it.

    The first probability is that of the label among the enrolled classes, the second that the class is enrolled at all.
    """
    from ..experiments.enrolment import identify
    from ..files import write_text
    from ..reports.page import write_sheet

    answers = identify(options.gallery, options.images, options.precision, options.run_dir)
    table = io.StringIO()
    rows = csv.writer(table, lineterminator="\n")
    rows.writerow(["image", "label", "refusal", "probability", "known", "most_probable", "evidence"])
    for name, answer in answers.items():
        names = [image.name or str(image.row) for image in answer.evidence]
        label = f"refused as {answer.refusal}, perhaps {answer.best}" if answer.label is None else answer.label
        by = ", ".join("/".join(Path(path).parts[-2:]) for path in names)
        print(f"{name}: {label}, {answer.probability:.0%} (enrolled: {answer.known:.0%}), by {by}")
        values = ["" if answer.label is None else label, answer.refusal, *map("{:.4f}".format, answer[1:3])]
        rows.writerow([name, *values, answer.best, "; ".join(names)])
    refusals = [answer.refusal for answer in answers.values() if answer.refusal]
    hint = "; a lower one answers more" * ("too uncertain" in refusals)
    print(f"{len(answers) - len(refusals)} of {len(answers)} answered with --precision {options.precision}{hint}")
    if options.csv:
        write_text(Path(options.csv), table.getvalue())
        print(options.csv)
    if options.html:
        print(write_sheet(answers, Path(options.html)))


@command(
    "export",
    argument("run_dir", metavar="RUN", type=existing, help="the folder of a finished run"),
    argument("target", metavar="FILE", help="the file to write, such as model.pt2"),
    PLUGIN,
)
def export_model(options: argparse.Namespace) -> None:
    """Write the model of a finished run as one file that runs without this package: images to raw embeddings.

    In Python: torch.export.load("model.pt2").module()(images), with images (batch, channels, height, width) of the size
    that the run was tested with and any batch size. The embeddings are not normalised.
    """
    from ..experiments.load import export

    shape, transform = export(options.run_dir, Path(options.target))
    print(f"{options.target}: inputs (batch, {', '.join(map(str, shape))}), made from images by {transform}")
