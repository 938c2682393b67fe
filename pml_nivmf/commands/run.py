"""`pml-nivmf run`: one experiment, from the beginning or resumed."""

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .shared import Commands, add_plugin, load_plugins


def add(commands: Commands) -> None:
    command = commands.add_parser(
        "run",
        help="train and evaluate one experiment",
        description="Train and evaluate one experiment. Overrides: general.epochs=3, loss=proxy_anchor (a variant), "
        "loss.NonIsotropicVMFLoss.temperature=0.5, key~OVERRIDE~=value (replace, do not merge), key~DELETE~.",
    )
    command.add_argument("experiment", nargs="?", help="a name from `pml-nivmf list`, or the path of a YAML file")
    command.add_argument("overrides", nargs="*", metavar="key=value", help="changes to the configuration")
    command.add_argument("--resume", metavar="RUN_DIR", help="continue an interrupted run")
    command.add_argument("--dry-run", action="store_true", help="print the composed configuration and stop")
    command.add_argument("--overwrite", action="store_true", help="start again in a folder that contains a run")
    add_plugin(command)
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from ..experiments import build, config, run

    load_plugins(options)
    if options.resume:
        if options.experiment or options.dry_run:
            raise ValueError("--resume takes its configuration from the run folder: omit the experiment and --dry-run")
        folder = Path(options.resume)
        return _execute(lambda: run.resume(folder), folder, options.plugin)
    if not options.experiment:
        raise ValueError("name an experiment (see `pml-nivmf list`) or a run to --resume")
    composed = config.compose(options.experiment, options.overrides)
    build.check_objects(composed)
    if options.dry_run:
        print(config.to_yaml(composed.config), end="")
        return 0
    folder = _run_folder(composed)
    try:
        return _execute(lambda: run.start(composed.config, folder, options.overwrite), folder, options.plugin)
    except config.ConfigError as error:
        raise config.located(error, composed.sources) from error


def _run_folder(composed: Any) -> Path:
    general = composed.config.general
    if general.run_dir is not None:
        return Path(general.run_dir).expanduser()  # shells do not expand ~ after `=`
    return Path("runs") / composed.name / Path(composed.loss_variant).stem / f"seed-{general.seed}"


def _execute(work: Callable[[], dict[str, Any]], folder: Path, plugins: Sequence[str]) -> int:
    """Run on all ranks that torchrun started and print the summary; after Ctrl-C print how to resume."""
    from ..experiments import distributed, run

    try:
        with distributed.session():
            summary = work()
            if distributed.is_first():
                _show(summary, folder)
    except KeyboardInterrupt:
        if not run.is_begun(folder):  # data and model were still being built
            raise
        if distributed.is_first():
            command = ["pml-nivmf", "run", "--resume", str(folder), *(f"--plugin={plugin}" for plugin in plugins)]
            print(f"\ninterrupted; finished epochs are saved. Resume with: {shlex.join(command)}", file=sys.stderr)
        return 130
    return 0


def _show(summary: dict[str, Any], folder: Path) -> None:
    for name, value in summary.get("test", {}).items():  # a sweep's trials have none
        print(f"test {name:<32} " + ("undefined" if value is None else f"{value:.4f}"))
    print(f"best epoch {summary['best_epoch']} by {summary['selected_by']}, run folder {folder}")
