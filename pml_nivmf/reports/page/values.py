"""Settings as text: YAML of a line, and where configurations differ."""

from collections.abc import Sequence
from typing import Any

import yaml

Path = tuple[str, ...]
# A seed's own, and where and on what it ran: no difference between experiments.
NOT_SETTINGS: tuple[Path, ...] = (("general", "seed"), ("general", "run_dir"), ("general", "threads"))


class Missing:
    """Stands for a key that a configuration does not have."""


MISSING = Missing()


def flow(value: Any) -> str:
    """One line of YAML; a dash for what is not there."""
    if isinstance(value, Missing) or value is None:
        return "–"
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**6, allow_unicode=True)
    return str(text).removesuffix("\n").removesuffix("\n...").strip()


def described(value: Any) -> str:
    """An object {ClassName: {argument: value}} for a sentence: ClassName (argument: value), and so on inside."""
    if not isinstance(value, dict) or len(value) != 1:
        return flow(value)
    ((name, arguments),) = value.items()
    if not isinstance(arguments, dict):
        return str(name) if arguments is None else f"{name}: {flow(arguments)}"
    inside = ", ".join(f"{key}: {described(argument)}" for key, argument in arguments.items())
    return f"{name} ({inside})" if inside else str(name)


def differing(configs: Sequence[dict[str, Any]]) -> dict[Path, list[Any]]:
    """By path, the values that the configurations have where they are not all the same.

    Objects of different classes are one difference, not one for every argument of each.
    """
    found = _differing(list(configs), ())
    return {path: values for path, values in found.items() if path not in NOT_SETTINGS}


def _differing(values: list[Any], path: Path) -> dict[Path, list[Any]]:
    if all(value == values[0] for value in values):
        return {}
    if not all(isinstance(value, dict) for value in values):
        return {path: values}
    keys = list(dict.fromkeys(key for value in values for key in value))
    if len(path) > 0 and any(set(value) != set(keys) for value in values) and _are_objects(values):
        return {path: values}
    found: dict[Path, list[Any]] = {}
    for key in keys:
        found |= _differing([value.get(key, MISSING) for value in values], (*path, str(key)))
    return found


def _are_objects(values: Sequence[dict[str, Any]]) -> bool:
    """{ClassName: {arguments}}, or none."""
    return all(len(value) <= 1 for value in values)
