"""What no configuration needs and an untrusted one might hold: references that run something, sizes beyond reason."""

import re
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from .errors import ConfigError
from .schema import ExperimentConfig

_REFERENCE = re.compile(r"\$\{([A-Za-z_]\w*(?:\.\w+)*)\}")
_MOST_REFERENCES = 100
_MOST = 10**8  # of integers; seeds may be larger
_MOST_SEED = 2**63 - 1


def check_values(merged: dict[str, Any]) -> None:
    """Refuse absurd integers, and references that are more than `${key.of.a.value}`.

    OmegaConf would also run resolvers, such as `${oc.env:HOME}`, which gives away the environment, and references to
    references, which can grow without bound.
    """
    references = 0
    for key, value in _leaves(merged, ""):
        if isinstance(value, int):
            _check_size(key, value)
        elif isinstance(value, str):
            references += _check_references(key, value, merged)
    if references > _MOST_REFERENCES:
        raise ConfigError(f"there are {references} references ${{…}}: write values out, {_MOST_REFERENCES} are allowed")


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of all that is no mapping and no list."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(inner, path)
    else:
        yield path, value


def _check_size(key: str, value: int) -> None:
    most = _MOST_SEED if key.endswith("seed") else _MOST
    if abs(value) > most:
        raise ConfigError(f"{key} is {value:.4g}, which is beyond reason: at most {most:,}", key=key)


def _check_references(key: str, text: str, merged: dict[str, Any]) -> int:
    """How many there are."""
    if text == "???":
        raise ConfigError(f"{key} is ???, which stands for a missing value: give one", key=key)
    found = _REFERENCE.findall(text)
    if "${" in _REFERENCE.sub("", text):
        raise ConfigError(
            f"{key}: {text!r} is refused: of OmegaConf's ${{…}} only ${{key.of.a.value}} is known", key=key
        )
    for name in found:
        target = _lookup(name, merged)
        if isinstance(target, dict | list) or (isinstance(target, str) and "${" in target):
            raise ConfigError(f"{key}: ${{{name}}} must refer to a plain value, got {target!r}", key=key)
    return len(found)


def _lookup(name: str, merged: dict[str, Any]) -> Any:
    """The value that a reference means, a default where the configuration has none; None if OmegaConf will complain."""
    for values in (merged, asdict(ExperimentConfig())):
        value: Any = values
        for part in name.split("."):
            if not isinstance(value, dict) or part not in value:
                break
            value = value[part]
        else:
            return value
    return None
