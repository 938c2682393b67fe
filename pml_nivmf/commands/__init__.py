"""The commands of `pml-nivmf`, one file each: the docstring is the help, `add_arguments` declares and `run` hands over.

Heavy imports stay inside the functions that need them, so that --help answers at once.
"""
