"""`python -m pml_nivmf` is `pml-nivmf`."""

from .cli import main

raise SystemExit(main())
