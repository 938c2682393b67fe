"""From names and overrides to one checked configuration.

An experiment file names variants of groups and says only what differs:

    description: …
    groups: {dataset: glyphs, model: conv_net, schedule: [cosine, early_stopping]}
    compare: [proxy_nca, el_nivmf]      # losses and
    seeds: 3                            # number of seeds for `pml-nivmf compare`
    general: {epochs: 8}

For each group, `GROUP/default.yaml` comes first, then the named variants in order, then the experiment's own section,
then the command line: `general.epochs=3`, `loss=proxy_anchor` (a variant), `loss.NonIsotropicVMFLoss.n_samples=5`.
Mappings merge key by key; an object `{ClassName: …}` is replaced where the class differs. `key~OVERRIDE~` replaces
instead of merging, `key~DELETE~` removes a key, in files and on the command line.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ..checks import check_count
from .errors import ConfigError, nearest
from .merging import DELETE, merge, split_action
from .schema import GROUPS, OBJECT_PATHS, ExperimentConfig

_EXPERIMENT_KEYS = ("description", "groups", "compare", "seeds", *GROUPS)
_COMMAND_LINE = "command line"
_DEFAULT_SEEDS = 5
_AT_LEAST = {
    "model.embedding_size": 2,
    "optimizers.clip_norm": 0,
    "schedule.patience": 1,
    "evaluation.every": 1,
    "evaluation.batch_size": 1,
    "general.epochs": 1,
    "general.seed": 0,
    "general.batch_size": 1,
    "general.num_workers": 0,
    "general.threads": 1,
}


class _Loader(yaml.SafeLoader):
    """YAML without code, in which 1e-3 is a number, as YAML 1.2 and every user have it."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


@dataclass
class Composed:
    """A checked configuration and where it came from."""

    name: str
    description: str
    config: DictConfig
    variants: dict[str, list[str]]  # the names chosen in each group
    compare: list[str]  # losses that `compare` runs by default
    seeds: int  # seeds that `compare` runs by default
    sources: dict[str, str] = field(default_factory=dict)  # dotted key -> file it was last set in


def config_folder() -> Path:
    """`experiment_configs` of the checkout, or the copy that travels with an installed package."""
    package = Path(__file__).parents[1]
    for candidate in (package / "experiment_configs", package.parent / "experiment_configs"):
        if (candidate / "loss" / "default.yaml").exists():
            return candidate
    raise ConfigError(f"no experiment_configs beside or inside {package.name}: reinstall the package")


def experiment_names() -> list[str]:
    folder = config_folder()
    return sorted(
        str(path.relative_to(folder).with_suffix(""))
        for path in folder.rglob("*.yaml")
        if path.relative_to(folder).parts[0] not in GROUPS
    )


def variant_names(group: str) -> list[str]:
    return sorted(path.stem for path in (config_folder() / group).glob("*.yaml"))


def description_of(path: Path) -> str:
    """The first comment line of a variant, or an experiment's description."""
    first = path.read_text().splitlines()[:1]
    if first and first[0].startswith("#"):
        return first[0].lstrip("# ")
    return str((_load(path) or {}).get("description", ""))


def compose(name_or_path: str, overrides: Sequence[str] = ()) -> Composed:
    """The configuration of an experiment, by name or by path of a YAML file, with command-line overrides."""
    path = _find_experiment(name_or_path)
    experiment = _load(path)
    _check_keys(experiment, _EXPERIMENT_KEYS, "", str(path))
    assignments = [_parse_override(text) for text in overrides]
    variants = _choose_variants(experiment.get("groups", {}), assignments, path)
    from_command_line = {a.key for a in assignments if a.variants is not None}
    merged: dict[str, Any] = {group: {} for group in GROUPS}
    sources: dict[str, str] = {}
    for group, names in variants.items():
        for name in ["default", *names]:
            file = _find_variant(group, name, _COMMAND_LINE if group in from_command_line else str(path))
            merge(merged, {group: _load(file)}, str(file), "", sources)
    own = {key: value for key, value in experiment.items() if key.split("~")[0] in GROUPS}
    merge(merged, own, str(path), "", sources)
    for assignment in assignments:
        if assignment.variants is None:
            merge(merged, assignment.nested(), _COMMAND_LINE, "", sources)
    config = _checked(merged, sources)
    return Composed(
        name=path.stem if Path(name_or_path).suffix else name_or_path,
        description=str(experiment.get("description", "")),
        config=config,
        variants=variants,
        compare=_as_names(experiment.get("compare", []), "compare", path),
        seeds=check_count(f"{path}: seeds", experiment.get("seeds", _DEFAULT_SEEDS)),
        sources=sources,
    )


def located(error: ConfigError, sources: dict[str, str]) -> ConfigError:
    """The same error with the file that set the key at fault in front."""
    return ConfigError(f"{_source_of(error.key, sources)}: {error}") if error.key else error


def to_yaml(config: DictConfig) -> str:
    return OmegaConf.to_yaml(config, resolve=True)


def loss_class(variant: str) -> str:
    """The class that a variant of the group `loss` names."""
    return str(next(iter(_load(_find_variant("loss", variant, _COMMAND_LINE)))))


def load_saved(path: Path) -> DictConfig:
    """A run folder's configuration, checked like any other."""
    return _checked({group: {} for group in GROUPS} | _load(path), {group: str(path) for group in GROUPS})


def differences(first: DictConfig, second: DictConfig, ignore: Sequence[str]) -> list[str]:
    """Dotted keys in which two configurations differ."""
    flat = [_flatten(OmegaConf.to_container(config, resolve=True), "") for config in (first, second)]
    keys = sorted(flat[0].keys() | flat[1].keys())
    return [key for key in keys if key not in ignore and flat[0].get(key) != flat[1].get(key)]


def _flatten(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        return {path: value}
    nested = (_flatten(inner, f"{path}.{key}" if path else str(key)) for key, inner in value.items())
    return {key: inner for part in nested for key, inner in part.items()}


# Files ----------------------------------------------------------------------------------------------------------


def _find_experiment(name_or_path: str) -> Path:
    given = Path(name_or_path)
    if given.suffix in (".yaml", ".yml"):
        if not given.exists():
            raise ConfigError(f"there is no file {given}")
        return given
    path = config_folder() / f"{name_or_path}.yaml"
    if name_or_path not in experiment_names():
        raise ConfigError(f"unknown experiment {name_or_path!r}{nearest(name_or_path, experiment_names())}")
    return path


def _find_variant(group: str, name: str, source: str) -> Path:
    """A packaged variant by name, or a user's own file by its path."""
    if name.endswith((".yaml", ".yml")):
        if not Path(name).exists():
            raise ConfigError(f"{source}: {group}: there is no file {name}")
        return Path(name)
    if name not in variant_names(group):
        raise ConfigError(f"{source}: unknown {group} {name!r}{nearest(name, variant_names(group))}")
    return config_folder() / group / f"{name}.yaml"


def _load(path: Path) -> dict[str, Any]:
    try:
        loaded = yaml.load(path.read_text(), _Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {error}") from None
    if not isinstance(loaded, dict | None):
        raise ConfigError(f"{path} must hold a mapping of keys to values, got {type(loaded).__name__}")
    return loaded or {}


# Command line ---------------------------------------------------------------------------------------------------


@dataclass
class _Assignment:
    key: str
    value: Any
    variants: list[str] | None  # names, where the key is a group: `loss=proxy_anchor`

    def nested(self) -> dict[str, Any]:
        *parents, last = self.key.split(".")
        result: dict[str, Any] = {last: self.value}
        for parent in reversed(parents):
            result = {parent: result}
        return result


def _parse_override(text: str) -> _Assignment:
    key, equals, value = text.partition("=")
    if not equals and not key.endswith(DELETE):
        raise ConfigError(f"{_COMMAND_LINE}: expected key=value or key{DELETE}, got {text!r}")
    try:
        parsed = yaml.load(value, _Loader) if value else None
    except yaml.YAMLError:
        raise ConfigError(f"{_COMMAND_LINE}: the value of {text!r} is not YAML") from None
    names = [parsed] if isinstance(parsed, str) else parsed
    is_choice = key in GROUPS and isinstance(names, list) and all(isinstance(name, str) for name in names)
    return _Assignment(key, parsed, names if is_choice else None)


def _choose_variants(chosen: Any, assignments: list[_Assignment], path: Path) -> dict[str, list[str]]:
    if not isinstance(chosen, dict):
        raise ConfigError(f"{path}: groups must be a mapping of group to variant names, got {chosen!r}")
    _check_keys(chosen, GROUPS, "groups", str(path))
    variants = {group: _as_names(chosen.get(group, []), f"groups.{group}", path) for group in GROUPS}
    for assignment in assignments:
        if assignment.variants is not None:
            variants[assignment.key] = assignment.variants
    return {group: [name for name in names if name != "default"] for group, names in variants.items()}


def _as_names(value: Any, key: str, path: Path) -> list[str]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{path}: {key} must be a variant's name or a list of names, got {value!r}")
    return names


# Checking -------------------------------------------------------------------------------------------------------


def _checked(merged: dict[str, Any], sources: dict[str, str]) -> DictConfig:
    _check_fields(merged, ExperimentConfig, "", sources)
    try:
        config = OmegaConf.merge(OmegaConf.structured(ExperimentConfig), merged)
        OmegaConf.resolve(config)
    except OmegaConfBaseException as error:
        key = error.full_key or ""
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{_source_of(key, sources)}: {key}: {reason}") from None
    for path in OBJECT_PATHS:
        names = list(OmegaConf.select(config, path))
        if len(names) > 1:
            raise ConfigError(f"{_source_of(path, sources)}: {path} must name one class, got {', '.join(names)}")
    for path, at_least in _AT_LEAST.items():
        value = OmegaConf.select(config, path)
        if value is not None and not value >= at_least:
            raise ConfigError(f"{_source_of(path, sources)}: {path} must be at least {at_least}, got {value}")
    assert isinstance(config, DictConfig)
    return config


def _check_fields(values: dict[str, Any], schema: Any, path: str, sources: dict[str, str]) -> None:
    valid = {f.name: f.type for f in fields(schema)}
    for key, value in values.items():
        full = f"{path}.{key}" if path else key
        if key not in valid:
            raise ConfigError(f"{_source_of(full, sources)}: unknown key {full!r}{nearest(key, list(valid))}")
        if is_dataclass(valid[key]):
            if not isinstance(value, dict):
                raise ConfigError(f"{_source_of(full, sources)}: {full} must be a mapping, got {value!r}")
            _check_fields(value, valid[key], full, sources)


def _check_keys(values: dict[str, Any], valid: Sequence[str], path: str, source: str) -> None:
    for key in values:
        if split_action(str(key))[0] not in valid:
            full = f"{path}.{key}" if path else key
            raise ConfigError(f"{source}: unknown key {full!r}{nearest(str(key), valid)}")


def _source_of(key: str, sources: dict[str, str]) -> str:
    while key and key not in sources:
        key = key.rpartition(".")[0]
    return sources.get(key, "defaults")
