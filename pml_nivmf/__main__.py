"""`python -m pml_nivmf` is `pml-nivmf`."""

from .cli import console

console()
