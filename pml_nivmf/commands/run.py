"""Train and evaluate one experiment, from the beginning or resumed.

Overrides: general.epochs=3, loss=proxy_anchor (a variant), loss.NonIsotropicVMFLoss.temperature=0.5,
key~OVERRIDE~=value (replace, do not merge), key~DELETE~.
"""

import argparse
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .shared import add_plugin, load_plugins


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("experiment", nargs="?", help="a name from `pml-nivmf list`, or the path of a YAML file")
    command.add_argument("overrides", nargs="*", metavar="key=value", help="changes to the configuration")
    command.add_argument("--resume", metavar="RUN_DIR", help="continue a run; general.epochs=N trains it for longer")
    command.add_argument("--dry-run", action="store_true", help="print the composed configuration and stop")
    command.add_argument("--overwrite", action="store_true", help="start again in a folder that contains a run")
    add_plugin(command)


def run(options: argparse.Namespace) -> None:
    from ..experiments import build, config, own_images
    from ..experiments.run import resume, start

    load_plugins(options)
    if options.resume:
        overrides = [text for text in (options.experiment, *options.overrides) if text]
        if options.dry_run or not all("=" in text for text in overrides):
            raise ValueError("--resume takes its configuration from the run folder: omit the experiment and --dry-run")
        folder = Path(options.resume)
        return _execute(lambda: resume(folder, overrides), folder, options.plugin)
    if not options.experiment:
        raise ValueError("name an experiment (see `pml-nivmf list`) or a run to --resume")
    composed = config.compose(options.experiment, own_images.fitted(options.experiment, options.overrides))
    build.check_objects(composed)
    if options.dry_run:
        print(config.to_yaml(composed.config), end="")
        return
    folder = _run_folder(composed, options)
    try:
        _execute(lambda: start(composed.config, folder, options.overwrite), folder, options.plugin)
    except config.ConfigError as error:
        raise config.located(error, composed.sources) from error


def _run_folder(composed: Any, options: argparse.Namespace) -> Path:
    from ..experiments.config import name_with_overrides
    from ..experiments.run import MACHINE

    general = composed.config.general
    if general.run_dir is not None:
        return Path(general.run_dir).expanduser()  # shells do not expand ~ after `=`
    name = name_with_overrides(options.experiment, options.overrides, MACHINE)
    return Path("runs") / name / Path(composed.loss_variant).stem / f"seed-{general.seed}"


def _execute(work: Callable[[], dict[str, Any]], folder: Path, plugins: Sequence[str]) -> None:
    """Run on all ranks that torchrun started and print the summary; after Ctrl-C tell `cli` how to resume."""
    from ..experiments import distributed
    from ..experiments.run import is_begun

    try:
        with distributed.session():
            summary = work()
            if distributed.is_first():
                _show(summary, folder)
    except KeyboardInterrupt:
        if not is_begun(folder):  # data and model were still being built
            raise
        command = ["pml-nivmf", "run", "--resume", str(folder), *(f"--plugin={plugin}" for plugin in plugins)]
        raise KeyboardInterrupt(f"finished epochs are saved. Resume with: {shlex.join(command)}") from None


def _show(summary: dict[str, Any], folder: Path) -> None:
    for name, value in summary.get("test", {}).items():  # a sweep's trials have none
        print(f"test {name:<32} " + ("undefined" if value is None else f"{value:.4f}"))
    print(f"best epoch {summary['best_epoch']} by {summary['selected_by']}, run folder {folder}")
