"""The `sweep` section of an experiment: how to search, and the space of each loss.

sweep:
  sampler: tpe            # or grid: every combination of `choice` parameters
  trials: 20              # of tpe, per loss
  seeds: 1                # runs per trial; the median of their validation scores counts
  pruner: median          # or none, which is a grid's default
  space:                  # for all losses; `loss.ClassName.…` only for losses of that class
    optimizers.proxy_lr: {log_uniform: [0.01, 1.0]}
    general.epochs: {int: [5, 20]}
    schedule: {choice: [default, cosine]}
  losses:                 # for one loss: more parameters, other ranges, or null to leave one out
    el_nivmf: {loss.NonIsotropicVMFLoss.initial_concentration: {uniform: [5, 50]}}
  start: {optimizers.proxy_lr: 0.1}       # the first trial; what is left out is drawn
  starts: {el_nivmf: {optimizers.proxy_lr: 0.3}}      # the same for one loss
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...checks import check_count
from ..compare import concerns
from ..config_files import variant_names
from ..errors import ConfigError, nearest
from .space import Space, read_parameter

_KEYS = ("sampler", "trials", "seeds", "pruner", "space", "losses", "start", "starts")
_SAMPLERS = ("tpe", "grid")
_PRUNERS = ("median", "none")
_DEFAULT_TRIALS = 20


@dataclass(frozen=True)
class Settings:
    """How to search."""

    sampler: str
    trials: int
    seeds: int
    pruner: str


def read_settings(section: Any, source: str) -> Settings:
    """`source` is the file, for what is said of a wrong section."""
    if not isinstance(section, dict) or not section:
        raise ConfigError(f"{source}: sweep must be a mapping with a space, got {section!r}")
    for key in section:
        if key not in _KEYS:
            raise ConfigError(f"{source}: unknown key 'sweep.{key}'{nearest(str(key), _KEYS)}")
    sampler = _option(section, "sampler", _SAMPLERS, "tpe", source)
    for key in ("trials", "start", "starts"):
        if sampler == "grid" and key in section:
            raise ConfigError(f"{source}: sweep.{key}: a grid runs every combination, so leave {key} out")
    return Settings(
        sampler=sampler,
        trials=_count(section, "trials", _DEFAULT_TRIALS, source),
        seeds=_count(section, "seeds", 1, source),
        pruner=_option(section, "pruner", _PRUNERS, "median" if sampler == "tpe" else "none", source),
    )


def check_names(section: dict[str, Any], losses: Sequence[str], source: str) -> None:
    """Everything in the section must have an effect: known losses, good parameters, starts of what is searched."""
    known = sorted({*variant_names("loss"), *(Path(loss).stem for loss in losses)})
    searched = _read_space(_mapping(section, "space", source), f"{source}: sweep.space")
    for part in ("losses", "starts"):
        for name, value in _mapping(section, part, source).items():
            if name not in known:
                raise ConfigError(f"{source}: sweep.{part}: unknown loss {name!r}{nearest(str(name), known)}")
            if not isinstance(value, dict):
                raise ConfigError(f"{source}: sweep.{part}.{name} must be a mapping, got {value!r}")
    for name, value in _mapping(section, "losses", source).items():
        own = {key: inner for key, inner in value.items() if inner is not None}
        searched |= _read_space(own, f"{source}: sweep.losses.{name}")
    for key in _mapping(section, "start", source):
        if key not in searched:
            raise ConfigError(f"{source}: sweep.start: {key!r} is not searched{nearest(str(key), list(searched))}")


def space_of(section: dict[str, Any], loss: str, source: str) -> Space:
    """The parameters of one loss: the common ones that concern it, changed by its own."""
    common = _read_space(_mapping(section, "space", source), f"{source}: sweep.space")
    space = {key: parameter for key, parameter in common.items() if concerns(key, loss)}
    where = f"{source}: sweep.losses.{Path(loss).stem}"
    for key, value in _part_of(section, "losses", loss, source).items():
        if value is not None:
            space[key] = read_parameter(key, value, where)
        elif key in space:
            del space[key]
        else:
            raise ConfigError(f"{where}: cannot leave out {key!r}, not searched{nearest(str(key), list(space))}")
    if not space:
        raise ConfigError(f"{source}: sweep has no parameter for {Path(loss).stem}: add some under space or losses")
    if section.get("sampler") == "grid":
        _check_grid(space, source)
    return space


def start_of(section: dict[str, Any], loss: str, space: Space, source: str) -> dict[str, Any]:
    """Values of the first trial, as Optuna keeps them; {} where the section names none."""
    common = {key: value for key, value in _mapping(section, "start", source).items() if key in space}
    values = common | _part_of(section, "starts", loss, source)
    for key, value in values.items():
        if key not in space:
            where = f"{source}: sweep.starts.{Path(loss).stem}"
            raise ConfigError(f"{where}: {key!r} is not searched{nearest(str(key), list(space))}")
        if not space[key].allows(value):
            raise ConfigError(f"{source}: sweep.start of {Path(loss).stem}: {key}: {value!r} is not in {space[key]}")
    return {key: space[key].stored(value) for key, value in values.items()}


def _read_space(values: dict[str, Any], where: str) -> Space:
    return {key: read_parameter(str(key), value, where) for key, value in values.items()}


def _part_of(section: dict[str, Any], part: str, loss: str, source: str) -> dict[str, Any]:
    return dict(_mapping(section, part, source).get(Path(loss).stem) or {})


def _mapping(section: dict[str, Any], key: str, source: str) -> dict[str, Any]:
    value = section.get(key)
    if not isinstance(value, dict | None):
        raise ConfigError(f"{source}: sweep.{key} must be a mapping, got {value!r}")
    return value or {}


def _option(section: dict[str, Any], key: str, options: Sequence[str], default: str, source: str) -> str:
    value = section.get(key, default)
    if value not in options:
        raise ConfigError(f"{source}: sweep.{key} must be one of {', '.join(options)}, got {value!r}")
    return str(value)


def _count(section: dict[str, Any], key: str, default: int, source: str) -> int:
    try:
        return check_count(f"{source}: sweep.{key}", section.get(key, default))
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _check_grid(space: Space, source: str) -> None:
    for key, parameter in space.items():
        if parameter.kind != "choice":
            raise ConfigError(f"{source}: sweep.space: {key}: a grid takes only choice, got {parameter.kind}")
