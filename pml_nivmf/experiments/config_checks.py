"""What a configuration may hold: known keys, values of the right type and size, one class an object."""

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from . import mixed_precision
from .config_limits import check_values
from .errors import ConfigError, nearest
from .merging import split_action
from .schema import OBJECT_PATHS, ExperimentConfig

_AT_LEAST = {
    "model.embedding_size": 2,
    "optimizers.embedder_lr": 0,  # torch looks at the model's rate only
    "optimizers.proxy_lr": 0,
    "optimizers.concentration_lr": 0,
    "optimizers.temperature_lr": 0,
    "optimizers.clip_norm": 0,
    "schedule.patience": 1,
    "evaluation.every": 1,
    "evaluation.batch_size": 1,
    "evaluation.closed_set_share": 0,
    "general.epochs": 1,
    "general.seed": 0,
    "general.batch_size": 1,
    "general.num_workers": 0,
    "general.threads": 1,
}
_ONE_OF = {"general.amp": mixed_precision.CHOICES}
_AT_MOST = {
    "model.embedding_size": 2**16,
    "evaluation.batch_size": 2**20,
    "evaluation.closed_set_share": 0.5,
    "general.epochs": 10**6,
    "general.batch_size": 2**20,
    "general.num_workers": 2**10,
    "general.threads": 2**10,
}


def checked(merged: dict[str, Any], sources: dict[str, str]) -> DictConfig:
    _check_fields(merged, ExperimentConfig, "", sources)
    if merged["general"].get("amp") is False:  # what YAML makes of `off`
        merged["general"]["amp"] = "off"
    try:
        check_values(merged)
    except ConfigError as error:
        raise ConfigError(f"{source_of(error.key or '', sources)}: {error}") from None
    try:
        config = OmegaConf.merge(OmegaConf.structured(ExperimentConfig), merged)
        OmegaConf.resolve(config)
    except OmegaConfBaseException as error:
        key = error.full_key or ""
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{source_of(key, sources)}: {key}: {reason}") from None
    for path in OBJECT_PATHS:
        names = list(OmegaConf.select(config, path))
        if len(names) > 1:
            raise ConfigError(f"{source_of(path, sources)}: {path} must name one class, got {', '.join(names)}")
    for path, at_least in _AT_LEAST.items():
        value = OmegaConf.select(config, path)
        if value is not None and not value >= at_least:
            raise ConfigError(f"{source_of(path, sources)}: {path} must be at least {at_least}, got {value}")
    for path, at_most in _AT_MOST.items():
        value = OmegaConf.select(config, path)
        if value is not None and value > at_most:
            raise ConfigError(f"{source_of(path, sources)}: {path} must be at most {at_most}, got {value}")
    for path, options in _ONE_OF.items():
        value = OmegaConf.select(config, path)
        if value not in options:
            raise ConfigError(f"{source_of(path, sources)}: {path} must be one of {', '.join(options)}, got {value!r}")
    assert isinstance(config, DictConfig)
    return config


def _check_fields(values: dict[str, Any], schema: Any, path: str, sources: dict[str, str]) -> None:
    valid = {f.name: f.type for f in fields(schema)}
    for key, value in values.items():
        full = f"{path}.{key}" if path else key
        if key not in valid:
            raise ConfigError(f"{source_of(full, sources)}: unknown key {full!r}{nearest(key, list(valid))}")
        if is_dataclass(valid[key]):
            if not isinstance(value, dict):
                raise ConfigError(f"{source_of(full, sources)}: {full} must be a mapping, got {value!r}")
            _check_fields(value, valid[key], full, sources)


def check_keys(
    values: dict[str, Any], valid: Sequence[str], path: str, source: str, mergeable: Sequence[str] = ()
) -> None:
    """Refuse unknown keys; only `mergeable` ones may carry ~OVERRIDE~ or ~DELETE~."""
    for key in values:
        if key not in valid and split_action(str(key))[0] not in mergeable:
            full = f"{path}.{key}" if path else key
            raise ConfigError(f"{source}: unknown key {full!r}{nearest(str(key), valid)}")


def source_of(key: str, sources: dict[str, str]) -> str:
    while key and key not in sources:
        key = key.rpartition(".")[0]
    return sources.get(key, "defaults")


def as_names(value: Any, key: str, source: str) -> list[str]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{source}: {key} must be a variant's name or a list of names, got {value!r}")
    return names
