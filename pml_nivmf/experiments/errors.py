"""What is said of a configuration that cannot be run."""

import difflib
from collections.abc import Sequence


class ConfigError(ValueError):
    """A configuration that cannot be run; `key` is the dotted key at fault, where one is."""

    def __init__(self, message: str, key: str | None = None):
        super().__init__(message)
        self.key = key


def nearest(name: str, valid: Sequence[str]) -> str:
    """': did you mean X?' or a list of what there is."""
    close = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.5)
    return f": did you mean {close[0]!r}?" if close else f": known are {', '.join(sorted(valid)) or 'none'}"
