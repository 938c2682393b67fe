"""The commands that train or evaluate models: train, run, compare, sweep, evaluate."""

import argparse
import json
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .arguments import OVERRIDES, PARALLEL, PLUGIN, argument, command, count, existing

_SEVERAL = (
    argument("--vary", metavar="KEY=V,V,…", default="", help="one row for each of these values of a key"),
    argument("--seeds", type=count, help="seeds per loss (default: the experiment's number, or 5)"),
    *PARALLEL,
)


@command(
    "train",
    argument("folder", metavar="FOLDER", type=existing, help="contains one folder of images for each class"),
    OVERRIDES,
    argument("--weights", metavar="FILE", type=existing, help="of timm's tf_efficientnet_lite0 (default: downloaded)"),
    *_SEVERAL,
)
def train(options: argparse.Namespace) -> None:
    """Train on your own images, a folder with one folder per class: ProxyAnchor beside PANC + EL-nivMF, then a report.

    Short for `compare own_images dataset.ImageFolder.root=FOLDER`; results: runs/NAME-…, after folder and overrides.
    The same command continues what was interrupted.
    """
    paths = {"dataset.ImageFolder.root": options.folder, "model.trunk.TimmTrunk.weights_file": options.weights}
    given = [f"{key}={json.dumps(str(path.resolve()), ensure_ascii=False)}" for key, path in paths.items() if path]
    options.overrides = ["own_images", *given, *options.overrides]
    compare(options)


@command(
    "run",
    argument("experiment", nargs="?", help="a name from `pml-nivmf list`, or the path of a YAML file"),
    OVERRIDES,
    argument("--resume", metavar="RUN", type=existing, help="continue a run; general.epochs=N trains it longer"),
    argument("--dry-run", action="store_true", help="print the composed configuration and stop"),
    argument("--overwrite", action="store_true", help="start again in a folder that contains a run"),
    PLUGIN,
)
def run(options: argparse.Namespace) -> None:
    """Train and evaluate one experiment, from the beginning or resumed.

    Overrides: general.epochs=3, loss=proxy_anchor (a variant), loss.NonIsotropicVMFLoss.temperature=0.5,
    key~OVERRIDE~=value (replace, do not merge), key~DELETE~.
    """
    from ..experiments import config

    if options.experiment and not options.resume:
        config.compose(options.experiment, options.overrides)  # a typing error, before imports that take seconds
    from ..experiments import build, folders, own_images
    from ..experiments.run import resume, start

    if options.resume:
        overrides = [text for text in (options.experiment, *options.overrides) if text]
        if options.dry_run or not all("=" in text for text in overrides):
            raise ValueError("--resume takes its configuration from the run folder: omit the experiment and --dry-run")
        return _execute(lambda: resume(options.resume, overrides), options.resume, options.plugin)
    if not options.experiment:
        raise ValueError("name an experiment (see `pml-nivmf list`) or a run to --resume")
    composed = config.compose(*own_images.fitted(options.experiment, options.overrides))
    build.check_objects(composed)
    if options.dry_run:
        print(config.to_yaml(composed.config), end="")
        return
    folder = folders.run_folder(composed, options.experiment, options.overrides)
    _execute(lambda: start(composed.config, folder, options.overwrite), folder, options.plugin)


def _execute(work: Callable[[], dict[str, Any]], folder: Path, plugins: Sequence[str]) -> None:
    """Run on all ranks that torchrun started and print the summary; after Ctrl-C tell `cli` how to resume."""
    from ..experiments import distributed
    from ..experiments.run import is_begun

    try:
        with distributed.session():
            summary = work()
            if distributed.is_first():
                for name, value in summary.get("test", {}).items():  # a sweep's trials have none
                    print(f"test {name:<32} " + ("undefined" if value is None else f"{value:.4f}"))
                print(f"best epoch {summary['best_epoch']} ({summary['selected_by']}), run folder {folder}")
    except KeyboardInterrupt:
        if not is_begun(folder):  # data and model were still being built
            raise
        words = ["pml-nivmf", "run", "--resume", str(folder), *(f"--plugin={plugin}" for plugin in plugins)]
        raise KeyboardInterrupt(f"finished epochs are saved. Resume with: {shlex.join(words)}") from None


@command("compare", argument("overrides", nargs="+", metavar="NAME", help="experiments, and overrides"), *_SEVERAL)
def compare(options: argparse.Namespace) -> None:
    """Train the same data, model and schedule under several losses and seeds; print and save a table and a report.

    Finished runs in the folder are reused, unfinished ones resumed.
    """
    from ..experiments import config

    names, overrides = _split(options.overrides)
    for name in names:
        config.compose(name, overrides)  # as in `run`
    from ..experiments import compare, folders, rescore

    targets = {folders.results_folder(options.dir, name, overrides): name for name in names}
    if not names or len(targets) < len(names):
        raise ValueError("name one or more experiments with different names (see `pml-nivmf list`)")
    plans = {
        folder: compare.plan(name, options.losses, options.seeds, overrides, folder, options.vary)
        for folder, name in targets.items()
    }
    jobs = [job for plan in plans.values() for job in plan]
    if options.dry_run:
        rows = {job.folder.parent: job for job in reversed(jobs)}  # the first seed of each
        for job in reversed(rows.values()):
            print(f"---\n# {job.label}\n{config.to_yaml(job.config)}", end="")
        return
    compare.run_jobs(jobs, options.jobs, options.plugin, options.overwrite)
    for folder, plan in plans.items():
        compare.write_results(folder.name, [*plan, *rescore.concatenate(plan)], folder)


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Names, and overrides."""
    overrides = [word for word in words if "=" in word or "~" in word]
    return [word for word in words if word not in overrides], overrides


@command(
    "sweep",
    argument("experiment", metavar="NAME", help="a name from `pml-nivmf list`, or the path of a YAML file"),
    OVERRIDES,
    argument("--trials", type=count, help="trials per loss (default: the experiment's number)"),
    argument("--storage", metavar="URL", help="database for Optuna (default: SQLite in FOLDER/study.db)"),
    argument("--reproduce-best", type=count, default=0, metavar="K", help="run the best with K new seeds"),
    *PARALLEL,
)
def sweep(options: argparse.Namespace) -> None:
    """Search the best settings of several losses by validation score, with one Optuna study per loss.

    The space is in the experiment's `sweep` section. The same command continues a sweep that was killed.
    """
    from ..experiments import folders, search_space, sweep

    plans = search_space.plan(options.experiment, options.losses, options.overrides, options.trials)
    if options.dry_run:
        print(*map(search_space.describe, plans), sep="\n")
        return
    folder = folders.results_folder(options.dir, options.experiment, options.overrides, "sweeps")
    storage = options.storage or f"sqlite:///{(folder / 'study.db').absolute()}"
    results = sweep.run_searches(plans, folder, storage, options.overwrite, options.jobs, options.plugin)
    results = [sweep.run_finals(result, folder, options.jobs, options.plugin) for result in results]
    sweep.write_results(results, folder)
    if options.reproduce_best:
        sweep.reproduce(results, options.reproduce_best, folder, options.jobs, options.plugin)


@command(
    "evaluate",
    argument("overrides", nargs="+", metavar="RUN", help="run folders, and key=value overrides"),
    argument("--images", choices=("test", "train", "crops"), default="test", help="(default: test)"),
    argument("--baseline", metavar="RUN", help="also draw norms, split by the errors of this run"),
    argument("--dir", metavar="FOLDER", help="output (default: runs/evaluated/RUN-…, after what is evaluated)"),
    PLUGIN,
)
def evaluate(options: argparse.Namespace) -> None:
    """Score the best weights of finished runs again, without training; print and save a table and a report.

    Overrides change the evaluation: evaluation=l2, evaluation=diversity, evaluation.test_metrics=[NMI].
    """
    from ..experiments import compare, folders, rescore
    from ..reports.figures import save
    from ..reports.run_folders import read_runs
    from ..reports.view import norms_by_errors_of

    runs, overrides = _split(options.overrides)
    names = ["-".join(Path(run).resolve().parts[-2:]) for run in runs]
    words = [*names, options.images, *map(folders.short_override, overrides)]
    folder = Path(options.dir or f"runs/evaluated/{'-'.join(words)}")
    jobs = rescore.rescore([*map(Path, runs)], overrides, folder, options.images)
    title = rescore.IMAGES[options.images]
    compare.write_results(f"{folder}, {title} as test items" if title else str(folder), jobs, folder)
    if options.baseline:
        baseline, scored = (read_runs(paths) for paths in ([Path(options.baseline)], [job.folder for job in jobs]))
        print(*save(norms_by_errors_of(baseline.runs[0], scored), folder / "norms_by_errors_of_baseline"), sep="\n")
