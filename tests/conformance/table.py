"""The README's table of what works with what in PML, from the suite's lists: `python -m tests.conformance.table`."""

import re
from collections.abc import Iterable
from pathlib import Path

from . import test_distances as distances
from . import test_losses as losses
from .programs import REDUCERS, REGULARIZERS, WRAPPERS

README = Path(__file__).parents[2] / "README.md"
BEGIN, END = "<!-- conformance: begin -->", "<!-- conformance: end -->"


def table() -> str:
    lines = ["| of PML | with our distances | not, and why |", "|---|---|---|"]
    for title, ending in (("losses", "Loss"), ("miners", "Miner")):
        works = [name for name in sorted(distances.LOSSES | distances.MINERS) if name.endswith(ending)]
        refused = {
            reason: sorted(name for name in names if name.endswith(ending))
            for reason, names in distances.REFUSING.items()
        }
        lines.append(f"| {title} | {_listed(works, ending)} | {_reasons(refused, ending)} |")
    lines.append(f"| around a loss | {_quoted(distances.WRAPPERS)} | – |")
    without = _quoted(distances.SEARCH_WITHOUT_DISTANCE)
    lines.append(f"| search | {_quoted(distances.SEARCH)} | uses no distance: {without} |")
    lines += ["", "| of PML | with our losses | not, and why |", "|---|---|---|"]
    for title, every, refusing in (
        ("reducers", REDUCERS, losses.REDUCERS_THAT_REFUSE),
        ("regularizers", REGULARIZERS, {}),
        ("around a loss", WRAPPERS, losses.WRAPPERS_THAT_REFUSE),
        ("trainers", losses.TRAINERS, {}),
        ("testers", losses.TESTERS, {}),
    ):
        refused = "; ".join(f"`{name}`: {reason}" for name, reason in sorted(refusing.items()))
        lines.append(f"| {title} | {_quoted(set(every) - set(refusing))} | {refused or '–'} |")
    return "\n".join(lines)


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _listed(names: list[str], ending: str) -> str:
    return ", ".join(f"`{name.removesuffix(ending)}`" for name in names) + f" (…{ending})"


def _reasons(refused: dict[str, list[str]], ending: str) -> str:
    return "; ".join(
        f"{reason}: {', '.join(f'`{name.removesuffix(ending)}`' for name in names)}"
        for reason, names in refused.items()
        if names
    )


def in_readme(text: str) -> str:
    """The README with a fresh table between the marks."""
    found = re.subn(f"{BEGIN}.*?{END}", lambda _: f"{BEGIN}\n{table()}\n{END}", text, flags=re.DOTALL)
    assert found[1] == 1, f"README.md needs one pair of {BEGIN} and {END}"
    return found[0]


if __name__ == "__main__":
    README.write_text(in_readme(README.read_text()))
