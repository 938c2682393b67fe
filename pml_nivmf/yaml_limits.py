"""How much a YAML file may hold: it may come from anywhere, and few lines of aliases can stand for more than memory."""

from collections.abc import Iterable
from typing import Any

import yaml
from yaml import events as e

MOST_BYTES = 1_000_000
MOST_NODES = 20_000  # keys, values and collections, an alias counted as often as it is used
MOST_DEPTH = 30


def check_text(text: str, loader: Any = yaml.SafeLoader) -> None:
    """A ValueError for documents too deep or too large, before anything is built."""
    if len(text) > MOST_BYTES:
        raise ValueError(f"it is larger than {MOST_BYTES:,} bytes")
    _check_events(yaml.parse(text, loader))


def _check_events(events: Iterable[Any]) -> None:
    """Looks once at the parser's events."""
    sizes: dict[str, int] = {}  # of what can be referred to, aliases written out
    unfinished: list[tuple[str | None, int]] = [(None, 0)]  # anchor and size so far of the collections around
    for event in events:
        if isinstance(event, e.AliasEvent):
            if event.anchor not in sizes:
                raise ValueError(f"the alias *{event.anchor} refers to nothing before it, or to what it is in")
            _grow(unfinished, sizes[event.anchor])
        elif isinstance(event, e.ScalarEvent):
            _grow(unfinished, 1)
            _remember(sizes, event.anchor, 1)
        elif isinstance(event, e.CollectionStartEvent):
            unfinished.append((event.anchor, 1))
            if len(unfinished) > MOST_DEPTH + 1:
                raise ValueError(f"it is nested deeper than {MOST_DEPTH} levels")
        elif isinstance(event, e.CollectionEndEvent):
            anchor, size = unfinished.pop()
            _remember(sizes, anchor, size)
            _grow(unfinished, size)


def _grow(unfinished: list[tuple[str | None, int]], size: int) -> None:
    anchor, before = unfinished[-1]
    if before + size > MOST_NODES:
        raise ValueError(f"with its aliases written out it holds more than {MOST_NODES:,} entries")
    unfinished[-1] = (anchor, before + size)


def _remember(sizes: dict[str, int], anchor: str | None, size: int) -> None:
    if anchor is not None:
        sizes[anchor] = size
