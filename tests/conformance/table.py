"""The tables of CONFORMANCE.md, from the suite's lists: `python -m tests.conformance.table` writes them."""

import re
from collections.abc import Iterable
from pathlib import Path

from . import test_distances as distances
from . import test_losses as losses
from .programs import REDUCERS, REGULARIZERS, WRAPPERS

PAGE = Path(__file__).parents[2] / "pml_nivmf" / "CONFORMANCE.md"
BEGIN, END = "<!-- conformance: begin -->", "<!-- conformance: end -->"


def table() -> str:
    lines = ["| of PML | with our distances | not, and why |", "|---|---|---|"]
    for title, works, ending in (("losses", distances.LOSSES, "Loss"), ("miners", distances.MINERS, "Miner")):
        refused = [
            f"{reason}: {_quoted(matching, ending)}"
            for reason, names in distances.REFUSING.items()
            if (matching := [name for name in names if name.endswith(ending)])
        ]
        lines.append(f"| {title} | {_quoted(works, ending)} (…{ending}) | {'; '.join(refused)} |")
    without = _quoted(distances.SEARCH_WITHOUT_DISTANCE)
    lines.append(f"| around a loss | {_quoted(distances.WRAPPERS)} | – |")
    lines.append(f"| search | {_quoted(distances.SEARCH)} | uses no distance: {without} |")
    lines += ["", "| of PML | with our losses | not, and why |", "|---|---|---|"]
    for title, names, refusing in (
        ("reducers", REDUCERS, losses.REDUCERS_THAT_REFUSE),
        ("regularizers", REGULARIZERS, {}),
        ("around a loss", WRAPPERS, losses.WRAPPERS_THAT_REFUSE),
        ("trainers", losses.TRAINERS, {}),
        ("testers", losses.TESTERS, {}),
    ):
        refused = [f"`{name}`: {reason}" for name, reason in sorted(refusing.items())]
        lines.append(f"| {title} | {_quoted(set(names) - set(refusing))} | {'; '.join(refused) or '–'} |")
    return "\n".join(lines)


def _quoted(names: Iterable[str], ending: str = "") -> str:
    return ", ".join(f"`{name.removesuffix(ending)}`" for name in sorted(names))


def in_page(text: str) -> str:
    """The page with fresh tables between the marks."""
    text, count = re.subn(f"{BEGIN}.*?{END}", lambda _: f"{BEGIN}\n{table()}\n{END}", text, flags=re.DOTALL)
    assert count == 1, f"{PAGE.name} needs one pair of {BEGIN} and {END}"
    return text


if __name__ == "__main__":
    PAGE.write_text(in_page(PAGE.read_text()))
