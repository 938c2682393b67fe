"""The commands of `pml-nivmf`, each a function that `cli` calls.

Heavy imports stay inside the functions that need them, so that --help answers at once.
"""

from . import run

# isort: split
from . import enrol, report  # after run: this is the order of the help
from .arguments import COMMANDS

__all__ = ["COMMANDS", "enrol", "report", "run"]
