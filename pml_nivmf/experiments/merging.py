"""Merging of configurations, key by key; another class replaces an object; ~OVERRIDE~ and ~DELETE~."""

from typing import Any

from .errors import ConfigError, nearest
from .schema import OBJECT_PATHS

OVERRIDE, DELETE = "~OVERRIDE~", "~DELETE~"


def merge(base: dict[str, Any], new: dict[str, Any], source: str, parent: str, sources: dict[str, str]) -> None:
    for raw_key, value in new.items():
        key, action = split_action(str(raw_key))
        path = f"{parent}.{key}" if parent else key
        if action == DELETE:
            if key not in base:
                raise ConfigError(f"{source}: cannot delete {path!r}, which is not set{nearest(key, list(base))}")
            del base[key]
            continue
        sources[path] = source
        old = base.get(key)
        if isinstance(old, dict) and isinstance(value, dict) and action != OVERRIDE and not _is_swap(path, old, value):
            merge(old, value, source, path, sources)
        elif isinstance(value, dict):
            base[key] = {}
            merge(base[key], value, source, path, sources)
        else:
            base[key] = value


def split_action(key: str) -> tuple[str, str | None]:
    for action in (OVERRIDE, DELETE):
        if key.endswith(action):
            return key.removesuffix(action), action
    return key, None


def _is_swap(path: str, old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether an object's class changes: the old class's arguments must not leak into the new one's."""
    names = {split_action(str(key))[0] for key in new}
    return path in OBJECT_PATHS and not names <= set(old)
