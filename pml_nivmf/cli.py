"""The command `pml-nivmf`: parse arguments, call one of `commands`, and report errors in one line."""

import argparse
import inspect
import sys
import traceback
from collections.abc import Sequence

from . import __version__
from .commands import COMMANDS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return 0 on success, 1 if the work failed, 2 if the arguments were wrong, 130 after Ctrl-C."""
    parser = _parser()
    options, rest = parser.parse_known_args(sys.argv[1:] or ["--help"] if arguments is None else arguments)
    if rest:  # overrides may follow options
        if any(text.startswith("-") for text in rest) or not hasattr(options, "overrides"):
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        options.overrides = [*options.overrides, *rest]
    try:
        if plugins := getattr(options, "plugin", []):
            from .experiments.registry import load_plugins

            load_plugins(plugins)
        options.run(options)
    except KeyboardInterrupt as interrupt:
        remedy = str(interrupt) or "the same command continues with what is saved"
        print(f"\npml-nivmf: interrupted; {remedy}", file=sys.stderr)
        return 130
    except (FloatingPointError, OSError, ModuleNotFoundError, ValueError) as error:
        return _report(error, options.debug)
    return 0


def _report(error: Exception, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    message = str(error)
    if "in DataLoader worker process" in message:  # with the worker's traceback
        message = message.strip().splitlines()[-1].partition(": ")[2]
    if isinstance(error, ModuleNotFoundError):
        message = f'{error.name} is missing: pip install "pml_nivmf[benchmark]"'
    print(f"pml-nivmf: {message}", file=sys.stderr)
    is_wrong_argument = isinstance(error, ValueError) and not isinstance(error, FloatingPointError)  # NotFiniteError
    return 2 if is_wrong_argument else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pml-nivmf", description="Probabilistic proxies for pytorch-metric-learning.")
    parser.add_argument("--version", action="version", version=f"pml-nivmf {__version__}")
    parser.add_argument("--debug", action="store_true", help="print the traceback of an error")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, (run, arguments) in COMMANDS.items():
        text = inspect.getdoc(run) or ""
        command = commands.add_parser(name, help=text.partition("\n")[0].rstrip("."), description=text)
        command.set_defaults(run=run)
        command.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        for names, settings in arguments:
            command.add_argument(*names, **settings)
    return parser
