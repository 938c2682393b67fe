"""What to say when a model's name is not known."""

from collections.abc import Collection
from difflib import get_close_matches


def unknown_model(library: str, name: str, known: Collection[str]) -> ValueError:
    """An error that offers the known names nearest to `name`."""
    near = get_close_matches(name, known, n=5, cutoff=0.5)
    hint = (
        f"did you mean {', '.join(near)}?" if near else f"it knows {len(known)} others, e.g. {', '.join(_few(known))}"
    )
    return ValueError(f"{library} has no model {name!r}: {hint}")


def _few(known: Collection[str]) -> list[str]:
    return sorted(known, key=lambda name: (len(name), name))[:3]
