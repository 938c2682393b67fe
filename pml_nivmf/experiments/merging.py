"""How mappings of a configuration merge: key by key, except where a key ends in an action.

An object `{ClassName: …}` is replaced where the class differs. `key~OVERRIDE~` replaces instead of merging,
`key~DELETE~` removes a key, and `key~SEARCH~: {uniform: […]}` lets `pml-nivmf sweep` choose the value.
"""

from typing import Any

from ..checks import nearest
from .schema import GROUPS, ConfigError

OVERRIDE, DELETE, SEARCH = "~OVERRIDE~", "~DELETE~", "~SEARCH~"


def mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict | None):
        raise ConfigError(f"{where} must be a mapping, got {value!r}")
    return value or {}


def merge(base: dict[str, Any], new: dict[str, Any], source: str, sources: dict[str, str], parent: str = "") -> None:
    """Merge `new` into `base`, and note the source of every key."""
    for key_with_action, value in new.items():
        key = _without_action(key_with_action)
        path = f"{parent}.{key}" if parent else key
        sources[path] = source
        if key_with_action == key + DELETE:
            if key not in base:
                raise ConfigError(f"{source}: cannot delete {path!r}, which is not set{nearest(key, base)}")
            del base[key]
        elif key_with_action == key + SEARCH:
            base[key_with_action] = value
        elif path in GROUPS or isinstance(value, dict):
            value, old = mapping(value, f"{source}: {path}"), base.get(key)
            if key_with_action == key + OVERRIDE or not isinstance(old, dict) or _class_differs(old, value):
                base[key] = {}
            merge(base[key], value, source, sources, path)
        else:
            base[key] = value
            base.pop(key + SEARCH, None)


def _without_action(key: Any) -> str:
    return str(key).removesuffix(OVERRIDE).removesuffix(DELETE).removesuffix(SEARCH)


def take_searches(values: dict[str, Any], parent: str = "") -> dict[str, Any]:
    """Remove all keys that end in ~SEARCH~; return their values by dotted key."""
    searches = {parent + _without_action(key): values.pop(key) for key in list(values) if key.endswith(SEARCH)}
    for key, value in values.items():
        searches |= take_searches(value, f"{parent}{key}.") if isinstance(value, dict) else {}
    return searches


def _class_differs(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether both are objects, `{ClassName: {…}}`, of different classes: arguments of the old must not remain."""
    before, after = map(_class_names, (old, new))
    return bool(before and after) and not after <= before


def _class_names(values: dict[str, Any]) -> set[str]:
    return {_without_action(key) for key in values if str(key)[:1].isupper() and isinstance(values[key], dict | None)}
