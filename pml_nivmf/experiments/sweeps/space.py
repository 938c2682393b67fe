"""Parameters that a sweep searches, `key: {choice|log_uniform|uniform|int: […]}`, and the settings that they span."""

import itertools
import json
import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

from .. import registry
from ..errors import ConfigError, nearest

_KINDS = ("choice", "log_uniform", "uniform", "int")
_MOST_COMBINATIONS = 10_000


@dataclass(frozen=True)
class Parameter:
    """One dotted key and what it may be: options, or the lowest and highest value."""

    key: str
    kind: str
    values: tuple[Any, ...]

    def suggest(self, trial: Any) -> None:
        """Let an Optuna trial draw a value."""
        if self.kind == "choice":
            trial.suggest_categorical(self.key, [self.stored(value) for value in self.values])
        elif self.kind == "int":
            trial.suggest_int(self.key, *self.values)
        else:
            trial.suggest_float(self.key, *self.values, log=self.kind == "log_uniform")

    def stored(self, value: Any) -> Any:
        """The value as Optuna keeps it; lists and mappings, which it does not take, are kept as JSON."""
        return json.dumps(value) if isinstance(value, list | dict) else value

    def restored(self, stored: Any) -> Any:
        if self.kind != "choice":
            return stored
        return next(value for value in self.values if self.stored(value) == stored)

    def allows(self, value: Any) -> bool:
        if self.kind == "choice":
            return value in self.values
        low, high = self.values
        return _is_number(value, whole=self.kind == "int") and bool(low <= value <= high)

    def __str__(self) -> str:
        return f"{self.kind} [{', '.join(json.dumps(value) for value in self.values)}]"


Space = dict[str, Parameter]


def override(key: str, value: Any) -> str:
    """A setting as `compose` takes it; JSON is YAML."""
    return f"{key}={json.dumps(value)}"


def combinations(space: Space) -> list[dict[str, Any]]:
    """Every combination of options, the last parameter changing fastest, as Optuna keeps them."""
    count = math.prod(len(parameter.values) for parameter in space.values())
    if count > _MOST_COMBINATIONS:
        raise ConfigError(f"the grid has {count:,} combinations: at most {_MOST_COMBINATIONS:,}, or use sampler: tpe")
    options = [[parameter.stored(value) for value in parameter.values] for parameter in space.values()]
    return [dict(zip(space, chosen, strict=True)) for chosen in itertools.product(*options)]


def corners(space: Space) -> list[dict[str, Any]]:
    """Settings that together hold every option and both ends of every range: few, but each value comes up."""
    most = max(len(parameter.values) for parameter in space.values())
    return [{key: p.values[min(i, len(p.values) - 1)] for key, p in space.items()} for i in range(most)]


def read_parameter(key: str, value: Any, where: str) -> Parameter:
    """From `{kind: [values]}`; `where` begins what is said of a wrong one."""
    where = f"{where}: {key}"
    if not isinstance(value, dict) or len(value) != 1:
        raise ConfigError(f"{where} must be one of {{{'|'.join(_KINDS)}: […]}}, got {value!r}")
    ((kind, values),) = value.items()
    if kind not in _KINDS:
        raise ConfigError(f"{where}: unknown distribution {kind!r}{nearest(str(kind), _KINDS)}")
    if not isinstance(values, list):
        raise ConfigError(f"{where}: {kind} wants a list, got {values!r}")
    _check_loss_class(key, where)
    if kind == "choice":
        _check_options(values, where)
    else:
        _check_range(kind, values, where)
    return Parameter(key, kind, tuple(values))


def _check_loss_class(key: str, where: str) -> None:
    """A misspelt class would concern no loss at all, and nobody would notice."""
    group, _, rest = key.partition(".")
    name = rest.partition(".")[0]
    if group == "loss" and name not in registry.known("loss"):
        if not name:
            raise ConfigError(f"{where}: each loss has a search of its own: list losses under compare, or by --losses")
        raise ConfigError(f"{where}: unknown loss {name!r}{nearest(name, registry.known('loss'))}")


def _check_options(values: list[Any], where: str) -> None:
    if not values:
        raise ConfigError(f"{where}: choice is empty: list at least one value")
    for i, value in enumerate(values):
        if value in values[:i]:  # also 1 and 1.0, and 1 and true, which a database cannot tell apart
            raise ConfigError(f"{where}: choice holds {value!r} twice")


def _check_range(kind: str, values: list[Any], where: str) -> None:
    wanted = "integers" if kind == "int" else "numbers"
    if len(values) != 2 or not all(_is_number(value, whole=kind == "int") for value in values):
        raise ConfigError(f"{where}: {kind} wants two {wanted}, [low, high], got {values!r}")
    low, high = values
    if not low < high:
        raise ConfigError(f"{where}: {kind} wants low < high, got {values!r}")
    if kind == "log_uniform" and low <= 0:
        raise ConfigError(f"{where}: log_uniform wants positive ends, got {values!r}")


def _is_number(value: Any, whole: bool) -> bool:
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return isinstance(value, int) if whole else math.isfinite(value)
