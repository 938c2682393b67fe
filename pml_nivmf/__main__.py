"""`python -m pml_nivmf` is the command `pml-nivmf`."""

import sys

from .cli import main

sys.exit(main())
