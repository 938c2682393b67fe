"""The commands of `pml-nivmf`, one file each: `add` declares the arguments, the rest hands over to the packages.

Heavy imports stay inside the functions that need them, so that --help answers at once.
"""
