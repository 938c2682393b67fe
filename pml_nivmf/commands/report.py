"""The commands that need no training: report, list, bench, figures, results."""

import argparse
import json
import os
from pathlib import Path

from .arguments import argument, command, count

_SHAPES = "batch, classes, dimensions, samples; may be repeated (default: three shapes like CUB and SOP)"
_CLASSES = "measure EL-nivMF at these numbers of classes"
_SIZES = "images, classes, dimensions: a gallery next to faiss's search instead (default: 1000000 100000 128)"


@command(
    "report",
    argument("runs", nargs="+", metavar="RUN", help="run folders, or folders that contain some"),
    argument("--out", metavar="FILE.html", help="(default: report.html in RUN, or here for several)"),
)
def report(options: argparse.Namespace) -> None:
    """Write one HTML page about runs, which needs no network: results, curves, images, settings."""
    from ..reports.page import write_report

    folder = Path(options.runs[0]) if len(options.runs) == 1 else Path()
    print(write_report(options.runs, options.out or folder / "report.html"))


@command("list")
def list_variants(options: argparse.Namespace) -> None:
    """List experiments, datasets, models and losses, one per line with a description."""
    from ..experiments.config import variants

    for group in ("experiment", "dataset", "model", "loss", "miner", "optimizers", "schedule"):
        print(group)
        for name, path in variants(group).items():
            line = path.read_text(encoding="utf-8").partition("\n")[0]
            description = line.removeprefix("# ").removeprefix("description: ").strip('"')
            if name != "default":
                print(f"  {name:<26} {description}")


@command(
    "bench",
    argument("--shape", action="append", type=count, nargs=4, metavar=tuple("BCMN"), help=_SHAPES),
    argument("--rounds", type=count, default=20, help="steps; the table has medians (default: 20)"),
    argument("--classes", type=lambda text: [*map(count, text.split(","))], metavar="C,C,…", help=_CLASSES),
    argument("--gallery", type=count, nargs="*", metavar="N", help=_SIZES),
    argument("--device", default="cpu", help="cpu, cuda, cuda:1, … (default: cpu)"),
    argument("--json", action="store_true", help="print JSON instead of a table"),
)
def bench(options: argparse.Namespace) -> None:
    """Measure time and memory of PML's proxy losses and this package's, forward plus backward, side by side."""
    for name, quiet in {"KINETO_LOG_LEVEL": "99", "TORCH_CPP_LOG_LEVEL": "ERROR"}.items():
        os.environ.setdefault(name, quiet)  # or torch's profiler, which measures memory, writes over the table

    from ..experiments import bench
    from ..experiments.build import pick_device

    device = pick_device(options.device)
    shapes = [bench.Shape(*numbers) for numbers in options.shape or bench.DEFAULT_SHAPES]
    if options.classes:
        shapes = [bench.Shape(112, classes, 128, 5) for classes in options.classes]
    if options.gallery is not None and len(options.gallery) not in (0, 3):
        raise ValueError(f"--gallery takes images, classes and dimensions, or nothing, got {options.gallery}")
    if options.gallery is not None:
        what = "steps of a gallery, ratio: to the time of faiss's plain search"
        rows = bench.run_gallery(options.gallery or [1_000_000, 100_000, 128], min(options.rounds, 5))
    else:
        what = f"forward + backward, ratio: to the time of {bench.BASELINE}"
        rows = bench.run(shapes, options.rounds, device, bool(options.classes))
    print(json.dumps(rows, indent=2)) if options.json else bench.show(rows, what)


@command(
    "figures",
    argument("--dir", metavar="FOLDER", default="figures", help="output folder (default: %(default)s)"),
    argument("--omega", nargs="+", metavar="FOLDER", help="draw R@1 against ω: one line for each folder"),
)
def draw_figures(options: argparse.Namespace) -> None:
    """Draw the figures that need no run: densities, distances and normalizers; or a metric against the weight ω."""
    from ..reports import figures
    from ..reports.figures.runs import weight_curves
    from ..reports.run_folders import read_runs
    from ..reports.view import weight_scores

    figures_to_draw = figures.NEEDING_NO_RUN
    if options.omega:
        scores = {folder: weight_scores(read_runs([Path(folder)])) for folder in options.omega}
        figures_to_draw = {"omega": lambda: weight_curves(scores, "R@1")}
    for name, draw in figures_to_draw.items():
        print(*figures.save(draw(), Path(options.dir) / name), f"  {(draw.__doc__ or name).splitlines()[0]}", sep="\n")


@command(
    "results", argument("--collect", nargs="+", action="extend", default=[], metavar="STUDY", help="folders of runs")
)
def write_results(options: argparse.Namespace) -> None:
    """Write RESULTS.md from results/runs.csv and results/tuned.yaml, and add finished runs to these."""
    from ..experiments.config import config_folder
    from ..files import write_text
    from ..reports import results

    page, folder = config_folder() / "RESULTS.md", config_folder() / "results"
    runs, searches = results.read(folder)
    for study in map(Path, options.collect):
        if not study.is_dir():
            raise ValueError(f"--collect {study}: there is no such folder")
        collected, tuned = results.collect_runs(study), results.collect_tuned(study)
        print(f"{len(collected)} runs from {study}")
        runs += collected
        for data, search in tuned.items():  # losses that were searched before stay
            of_study = searches.setdefault(study.resolve().name, {})
            of_study[data] = search | {"losses": of_study.get(data, search)["losses"] | search["losses"]}
    results.write(folder, runs, searches)
    write_text(page, results.write_page(folder))
    print(page)
