"""`pml-nivmf run`: one experiment, from the beginning or resumed."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..experiments import interrupts
from .shared import Commands, add_plugin, load_plugins


def add(commands: Commands) -> None:
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
    add_plugin(command)
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from ..experiments import build, config, errors, run

    load_plugins(options)
    if options.resume:
        if options.experiment or options.dry_run:
            raise ValueError("--resume takes its configuration from the run folder: leave experiment and --dry-run out")
        folder = Path(options.resume)
        return _guarded(lambda: run.resume(folder), folder, options.plugin)
    if not options.experiment:
        raise ValueError("name an experiment (see `pml-nivmf list`) or a run to --resume")
    composed = config.compose(options.experiment, options.overrides)
    build.check_objects(composed)
    if options.dry_run:
        print(config.to_yaml(composed.config), end="")
        return 0
    folder = _run_folder(composed)
    try:
        return _guarded(lambda: run.start(composed.config, folder, options.overwrite), folder, options.plugin)
    except errors.ConfigError as error:
        raise config.located(error, composed.sources) from None


def _run_folder(composed) -> Path:  # type: ignore[no-untyped-def]
    general = composed.config.general
    if general.run_dir is not None:
        return Path(general.run_dir).expanduser()  # no shell does it behind `=`
    return Path("runs") / composed.name / Path(composed.loss_variant).stem / f"seed-{general.seed}"


def _guarded(work, folder: Path, plugins: Sequence[str]) -> int:  # type: ignore[no-untyped-def]
    """Do the work, on all ranks if torchrun started several, and show its summary; after Ctrl-C say how to go on."""
    from ..experiments import distributed, dying_ranks, run

    command = distributed.resume_command(folder, plugins)

    def go_on() -> str:
        if distributed.is_first() and not run.is_begun(folder):  # who alone need see the folder
            return "Nothing was begun: the same command starts again"
        ranks = ", with any number of ranks that divides the batch," if distributed.is_launched() else ""
        return f"Finished epochs are saved; go on{ranks} with: {command}"

    try:
        with interrupts.remembered(), dying_ranks.explained(go_on), distributed.session():
            summary = work()
            if distributed.is_first():
                _show(summary, folder)
    except KeyboardInterrupt:
        if not run.is_begun(folder):  # while data and model were still being built
            raise
        if distributed.is_first():
            print(f"\ninterrupted. {go_on()}", file=sys.stderr)
        return interrupts.INTERRUPTED
    return 0


def _show(summary: dict[str, Any], folder: Path) -> None:
    for name, value in summary.get("test", {}).items():  # a sweep's trials have none
        print(f"test {name:<32} " + ("undefined" if value is None else f"{value:.4f}"))
    print(f"best epoch {summary['best_epoch']} by {summary['selected_by']}, run folder {folder}")
