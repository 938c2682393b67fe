"""The command `pml-nivmf`: parses arguments and hands over; the work is in `experiments`.

Heavy imports stay inside the functions that need them, so that --help answers at once.
"""

import argparse
import json
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from . import __version__

_INTERRUPTED = 130  # what a shell reports for Ctrl-C
_SHOWN_METRICS = 3  # in a terminal of 80 columns; the saved table has all


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 if it went well, 1 if the work failed, 2 if the arguments were wrong."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest:  # overrides may stand behind options
        if any(text.startswith("-") for text in rest) or not hasattr(options, "overrides"):
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        options.overrides = [*options.overrides, *rest]
    try:
        warnings.filterwarnings("ignore", message="Converting a tensor with requires_grad=True")  # PML's progress bar
        return int(options.run(options))
    except ValueError as error:
        print(f"pml-nivmf: {error}", file=sys.stderr)
        return 2
    except (FloatingPointError, OSError) as error:
        print(f"pml-nivmf: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        print(f'pml-nivmf: {error.name} is missing: pip install "pml_nivmf[benchmark]"', file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pml-nivmf", description="Probabilistic proxies for pytorch-metric-learning.")
    parser.add_argument("--version", action="version", version=f"pml-nivmf {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add in (_add_run, _add_compare, _add_list, _add_bench):
        add(commands)
    return parser


# run ------------------------------------------------------------------------------------------------------------


def _add_run(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = commands.add_parser(
        "run",
        help="train and evaluate one experiment",
        description="Train and evaluate one experiment. Overrides: general.epochs=3, loss=proxy_anchor (a variant), "
        "loss.NonIsotropicVMFLoss.n_samples=5, key~OVERRIDE~=value (replace, do not merge), key~DELETE~.",
    )
    command.add_argument("experiment", nargs="?", help="a name from `pml-nivmf list`, or the path of a YAML file")
    command.add_argument("overrides", nargs="*", metavar="key=value", help="changes to the configuration")
    command.add_argument("--resume", metavar="RUN_DIR", help="continue an interrupted run")
    command.add_argument("--dry-run", action="store_true", help="print the composed configuration and stop")
    command.add_argument("--overwrite", action="store_true", help="start again in a folder that holds a run")
    _add_plugin(command)
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from .experiments import build, config, errors, run

    _load_plugins(options)
    if options.resume:
        if options.experiment or options.dry_run:
            raise ValueError("--resume takes its configuration from the run folder: leave experiment and --dry-run out")
        folder = Path(options.resume)
        return _guarded(lambda: run.resume(folder), folder)
    if not options.experiment:
        raise ValueError("name an experiment (see `pml-nivmf list`) or a run to --resume")
    composed = config.compose(options.experiment, options.overrides)
    build.check_objects(composed)
    if options.dry_run:
        print(config.to_yaml(composed.config), end="")
        return 0
    folder = _run_folder(composed)
    try:
        return _guarded(lambda: run.start(composed.config, folder, options.overwrite), folder)
    except errors.ConfigError as error:
        raise config.located(error, composed.sources) from None


def _run_folder(composed) -> Path:  # type: ignore[no-untyped-def]
    general = composed.config.general
    if general.run_dir is not None:
        return Path(general.run_dir)
    loss = composed.variants["loss"][-1] if composed.variants["loss"] else "default"
    return Path("runs") / composed.name / loss / f"seed-{general.seed}"


def _guarded(work, folder: Path) -> int:  # type: ignore[no-untyped-def]
    """Do the work and show its summary; after Ctrl-C say how to go on."""
    try:
        summary = work()
    except KeyboardInterrupt:
        print(f"\ninterrupted; finished epochs are saved. Go on with: pml-nivmf run --resume {folder}", file=sys.stderr)
        return _INTERRUPTED
    for name, value in summary["test"].items():
        print(f"test {name:<32} {value:.4f}")
    print(f"best epoch {summary['best_epoch']} by {summary['selected_by']}, run folder {folder}")
    return 0


# compare --------------------------------------------------------------------------------------------------------


def _add_compare(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = commands.add_parser(
        "compare",
        help="several losses and seeds on the same data, and a table",
        description="Train the same data, model and schedule under several losses and seeds; print and save a table "
        "of mean ± deviation with 95% t-intervals. Finished runs in the folder are kept, unfinished ones resumed.",
    )
    command.add_argument("overrides", nargs="+", metavar="NAME", help="experiments, and key=value overrides")
    command.add_argument("--overwrite", action="store_true", help="run again what is in the folder")
    command.add_argument(
        "--losses", help="comma-separated loss variants or YAML files (default: the experiment's list)"
    )
    command.add_argument("--seeds", type=int, help="seeds per loss (default: the experiment's own number, or 5)")
    command.add_argument("--jobs", type=int, help="runs at a time, one thread each (default: the number of cores)")
    command.add_argument("--dir", metavar="FOLDER", help="where runs and table go (default: runs/NAME)")
    _add_plugin(command)
    command.set_defaults(run=_compare)


def _compare(options: argparse.Namespace) -> int:
    from .checks import check_count
    from .experiments import compare

    _load_plugins(options)
    for name in ("seeds", "jobs"):
        if getattr(options, name) is not None:
            check_count(f"--{name}", getattr(options, name), at_least=1)
    overrides = [text for text in options.overrides if "=" in text or "~" in text]
    names = [text for text in options.overrides if text not in overrides]
    if not names:
        raise ValueError("name an experiment (see `pml-nivmf list`)")
    losses = options.losses.split(",") if options.losses else []
    plans = {}
    for name in names:
        folder = Path(options.dir or "runs") / Path(name).stem
        plans[name] = (folder, compare.plan(name, losses, options.seeds, overrides, folder, options.overwrite))
    for name, (folder, jobs) in plans.items():
        workers = options.jobs or compare.default_workers(len(jobs))
        try:
            rows = compare.run_jobs(jobs, workers, options.plugin)
        except KeyboardInterrupt:
            print(f"\ninterrupted; the same command goes on with the runs in {folder}", file=sys.stderr)
            return _INTERRUPTED
        _show_comparison(Path(name).stem, folder, rows)
    return 0


def _show_comparison(name: str, folder: Path, rows) -> None:  # type: ignore[no-untyped-def]
    from rich.console import Console
    from rich.table import Table

    from .experiments import checkpoint, tables

    metrics = tables.ordered_metrics(rows)[:_SHOWN_METRICS]
    table = Table(
        title=f"{name}: test metrics in percent, mean ± deviation\n\\[95% interval of the mean], best in bold"
    )
    table.add_column("loss", no_wrap=True)
    for metric in metrics:
        table.add_column(tables.short_name(metric), justify="right", no_wrap=True)
    for row in rows:
        best = [tables.best_loss(rows, metric) == row.loss for metric in metrics]
        cells = [str(row.metrics[metric]).replace(" [", "\n\\[") for metric in metrics]
        table.add_row(row.loss, *(f"[bold]{c}[/bold]" if b else c for c, b in zip(cells, best, strict=True)))
    Console().print(table)
    checkpoint.write_text(folder / "comparison.md", tables.as_markdown(rows) + "\n")
    checkpoint.write_text(folder / "comparison.json", json.dumps(tables.as_json(rows), indent=1))
    print(f"{rows[0].seeds} seeds, runs and tables in {folder}")


# list -----------------------------------------------------------------------------------------------------------


def _add_list(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = commands.add_parser("list", help="experiments, datasets, models and losses, a line each")
    command.set_defaults(run=_list)


def _list(options: argparse.Namespace) -> int:
    from .experiments import config

    folder = config.config_folder()
    sections = {"experiments": [(name, folder / f"{name}.yaml") for name in config.experiment_names()]}
    for group in ("dataset", "model", "loss", "miner", "optimizers", "schedule"):
        names = [name for name in config.variant_names(group) if name != "default"]
        sections[group] = [(name, folder / group / f"{name}.yaml") for name in names]
    for title, entries in sections.items():
        print(title)
        for name, path in entries:
            print(f"  {name:<20} {config.description_of(path)}")
    return 0


# bench ----------------------------------------------------------------------------------------------------------


def _add_bench(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    bench = commands.add_parser(
        "bench",
        help="time and memory of every loss, side by side",
        description="Forward plus backward time and peak extra memory of PML's ProxyNCALoss and ProxyAnchorLoss, of "
        "this package's losses, and of a direct transcription of the paper's Algorithm 1, in one run.",
    )
    bench.add_argument(
        "--shape",
        action="append",
        metavar="B,C,M,N",
        help="batch, classes, dimensions, samples; may be repeated (default: three shapes like CUB and SOP)",
    )
    bench.add_argument(
        "--rounds", type=int, default=20, help="timed rounds; the median is shown (default: %(default)s)"
    )
    bench.add_argument("--threads", type=int, default=None, help="CPU threads (default: torch's choice)")
    bench.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, … (default: %(default)s)")
    bench.add_argument("--json", action="store_true", help="print JSON instead of a table")
    bench.set_defaults(run=_run_bench)


def _run_bench(options: argparse.Namespace) -> int:
    from .experiments import bench

    shapes = [bench.parse_shape(text) for text in options.shape] if options.shape else bench.DEFAULT_SHAPES
    results = bench.run(shapes, rounds=options.rounds, threads=options.threads, device=options.device)
    print(bench.as_json(results) if options.json else bench.as_table(results))
    return 0


# plugins --------------------------------------------------------------------------------------------------------


def _add_plugin(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--plugin", action="append", default=[], metavar="FILE.py", help='a file that calls register("loss", MyLoss)'
    )


def _load_plugins(options: argparse.Namespace) -> None:
    from .experiments import registry

    for plugin in options.plugin:
        registry.load_plugin(plugin)
