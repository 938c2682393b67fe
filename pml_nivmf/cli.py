"""The command `pml-nivmf`: parses arguments and hands over to one of `commands`; says in one line what went wrong."""

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from . import __version__
from .commands import bench, compare, figures, listing, report, results, run, sweep
from .experiments import interrupts

_INTERRUPTED = "\npml-nivmf: interrupted before anything was begun; the same command starts again"


def console() -> NoReturn:
    """The command as a process of its own."""
    interrupts.end_at_once(_INTERRUPTED)
    code = main()
    if code == interrupts.INTERRUPTED:
        interrupts.leave()
    sys.exit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 if it went well, 1 if the work failed, 2 if the arguments were wrong."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest:  # overrides may stand behind options
        if any(text.startswith("-") for text in rest) or not hasattr(options, "overrides"):
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        options.overrides = [*options.overrides, *rest]
    try:
        return int(options.run(options))
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        sys.stderr.close()
        return 0
    except (FloatingPointError, OSError) as error:  # also NotFiniteError, which is a ValueError too
        print(f"pml-nivmf: {error}", file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"pml-nivmf: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(_INTERRUPTED, file=sys.stderr)
        return interrupts.INTERRUPTED
    except ModuleNotFoundError as error:
        print(f'pml-nivmf: {error.name} is missing: pip install "pml_nivmf[benchmark]"', file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pml-nivmf", description="Probabilistic proxies for pytorch-metric-learning.")
    parser.add_argument("--version", action="version", version=f"pml-nivmf {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in (run, compare, sweep, report, listing, bench, figures, results):
        command.add(commands)
    return parser
