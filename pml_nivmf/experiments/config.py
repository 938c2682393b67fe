"""From an experiment's name and overrides to one checked configuration.

experiment_configs/README.md describes the files, the order in which they are merged, and `key~OVERRIDE~`,
`key~DELETE~` and `key~SEARCH~`. Configurations run no code and do not read the environment.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from ..checks import check_count, nearest
from ..reports.run_folders import differing
from .schema import GROUPS, SETTINGS, ExperimentConfig
from .schema import ConfigError as ConfigError  # for all who read configurations

OVERRIDE, DELETE, SEARCH = "~OVERRIDE~", "~DELETE~", "~SEARCH~"
YAML = (".yaml", ".yml")
# Where and how a run is computed. It may be resumed with these changed; with others it would be another run.
MACHINE = ("general.run_dir", "general.threads", "general.device", "general.num_workers")
_REFERENCE = re.compile(r"\$\{\w+(\.\w+)*\}")


@dataclass
class Composed:
    """A checked configuration, and the other keys of an experiment's file."""

    loss_variant: str
    config: DictConfig
    searches: dict[str, Any]  # dotted key -> space of key~SEARCH~
    description: str = ""
    compare: list[str] = field(default_factory=list)  # losses, values of a key (KEY=VALUE,VALUE,…) and number of seeds
    vary: str = ""  # that `compare` runs by default
    seeds: int = 5
    sweep: Any = None  # see `search_space`
    fit: Any = None  # see `own_images`


_OPTIONS = ("description", "compare", "vary", "seeds", "sweep", "fit")


def config_folder() -> Path:
    """`experiment_configs` of the checkout, or the copy inside an installed package."""
    package = Path(__file__).parents[1]
    installed = package / "experiment_configs"
    return installed if installed.exists() else package.parent / "experiment_configs"


@cache
def variants(group: str) -> dict[str, Path]:
    """The files of the packaged variants of a group by name or, for the group "experiment", of all experiments."""
    folder = config_folder() / ("" if group == "experiment" else group)
    paths = [path for path in sorted(folder.rglob("*.yaml")) if path.name != "tuned.yaml"]
    names = [path.relative_to(folder).with_suffix("") for path in paths]
    return {name.as_posix(): path for name, path in zip(names, paths, strict=True) if name.parts[0] not in GROUPS}


def find_variant(group: str, name: str) -> Path:
    """The file of a variant or an experiment, by name or by a user's path."""
    if name.endswith(YAML):
        return Path(name)
    if name not in variants(group):
        raise ConfigError(f"unknown {group} {name!r}{nearest(name, variants(group))}")
    return variants(group)[name]


def loss_class(variant: str) -> str:
    """The class that a variant of the group `loss` names."""
    return str(next(iter(load(find_variant("loss", variant)))))


def load(path: Path) -> dict[str, Any]:
    return dict(_parse(path.read_text(encoding="utf-8"), str(path)))


@cache  # OmegaConf parses slowly
def _parse(text: str, source: str) -> dict[str, Any]:
    """A YAML mapping as plain data; references are checked but not resolved yet."""
    try:
        content = OmegaConf.to_container(OmegaConf.create(text))
    except (yaml.YAMLError, OmegaConfBaseException, ValueError, AssertionError) as error:
        raise ConfigError(f"{source} is not YAML that can be read: {error}") from None
    if "${" in _REFERENCE.sub("", str(content)):  # OmegaConf would run ${oc.env:HOME}
        raise ConfigError(f"{source}: only references to other values, such as ${{general.epochs}}, are allowed")
    return _mapping(content, source)


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict | None):
        raise ConfigError(f"{where} must be a mapping, got {value!r}")
    return value or {}


def compose(name_or_path: str, overrides: Sequence[str] = ()) -> Composed:
    """The configuration of an experiment, by name or by path of a YAML file, with command-line overrides."""
    experiments = _with_bases(name_or_path)
    options: dict[str, Any] = {}
    for experiment in experiments:
        options |= {key: experiment.pop(key) for key in _OPTIONS if key in experiment}
    per_loss = [_mapping(experiment.pop("per_loss", {}), "per_loss") for experiment in experiments]
    _read_names("loss", [name for sections in per_loss for name in sections])
    command_line = [_parse_override(text) for text in overrides]
    loss = _variants([*experiments, *command_line])["loss"][-1]
    sections_of_loss = [_mapping(sections.get(loss), f"per_loss.{loss}") for sections in per_loss]
    chosen = _variants([*experiments, *sections_of_loss, *command_line])
    # Variants of the command line replace what files say, but per_loss changes a loss.
    late = {group: chosen[group][1:] for new in command_line for group in new.get("groups", {}) if group != "loss"}
    early = [*_files(chosen | {group: ["default"] for group in late}), *experiments, *sections_of_loss]
    composed = Composed(chosen["loss"][-1], *_checked([*early, *_files(late), *command_line]), **options)
    composed.compare = _read_names("loss", composed.compare)
    check_count("seeds", composed.seeds)
    return composed


def _with_bases(name_or_path: str) -> list[dict[str, Any]]:
    """The experiment's file, preceded by the file of its base, and so on."""
    experiment = load(find_variant("experiment", name_or_path))
    base = experiment.pop("base", None)
    return [*([] if base is None else _with_bases(str(base))), experiment]


def _variants(layers: Sequence[dict[str, Any]], default: Sequence[str] = ("default",)) -> dict[str, list[str]]:
    """The variants of each group in the order of merging; the last layer that names some of a group chooses them."""
    chosen = {group: [*default] for group in GROUPS}
    for values in layers:
        for group, names in _mapping(values.get("groups"), "groups").items():
            if group not in GROUPS:
                raise ConfigError(f"unknown key 'groups.{group}'{nearest(str(group), GROUPS)}")
            chosen[group] = [*default, *_read_names(group, names)]
    return chosen


def _files(chosen: dict[str, list[str]]) -> list[dict[str, Any]]:
    return [{group: load(find_variant(group, name))} for group, names in chosen.items() for name in names]


def _read_names(group: str, names: Any) -> list[str]:
    """One name or a list of names of existing variants."""
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"expected the name of a {group} or a list of names, got {names!r}")
    for name in names:
        find_variant(group, name)
    return names


def _parse_override(text: str) -> dict[str, Any]:
    """`a.b=1` as {a: {b: 1}}, and the choice of a variant, `loss=cos`, as {groups: {loss: cos}}."""
    key, equals, value_text = text.partition("=")
    if not equals and not key.endswith(DELETE):
        raise ConfigError(f"expected key=value or key{DELETE}, got {text!r}")
    value = _parse(f"value: {value_text}", repr(text))["value"]
    if key in GROUPS and isinstance(value, str | list):
        key = f"groups.{key}"
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def _checked(layers: Sequence[dict[str, Any]]) -> tuple[DictConfig, dict[str, Any]]:
    """The merged values with types, defaults and resolved references, and the search spaces."""
    merged: dict[str, Any] = {}
    for values in layers:
        _merge(merged, values)
    merged.pop("groups", None)
    searches = _take_searches(merged)
    try:
        config: Any = OmegaConf.merge(OmegaConf.structured(ExperimentConfig), merged)
        OmegaConf.resolve(config)
    except OmegaConfBaseException as error:
        raise _explained(error, merged) from None
    if config.general.amp == "False":  # YAML reads `off` as false
        config.general.amp = "off"
    for key, check in SETTINGS.items():
        check(key, OmegaConf.select(config, key))
    return config, searches


def _merge(base: dict[str, Any], new: dict[str, Any], parent: str = "") -> None:
    for key_with_action, value in new.items():
        key = _without_action(key_with_action)
        path = f"{parent}.{key}" if parent else key
        if key_with_action == key + DELETE:
            if key not in base:
                raise ConfigError(f"cannot delete {path!r}, which is not set{nearest(key, base)}")
            del base[key]
        elif key_with_action == key + SEARCH:
            base[key_with_action] = value
        elif path in GROUPS or isinstance(value, dict):
            value, old = _mapping(value, path), base.get(key)
            if key_with_action == key + OVERRIDE or not isinstance(old, dict) or _class_differs(old, value):
                base[key] = {}
            _merge(base[key], value, path)
        else:
            base[key] = value
            base.pop(key + SEARCH, None)


def _without_action(key: Any) -> str:
    return str(key).removesuffix(OVERRIDE).removesuffix(DELETE).removesuffix(SEARCH)


def _take_searches(values: dict[str, Any], parent: str = "") -> dict[str, Any]:
    """Remove all keys that end in ~SEARCH~; return their values by dotted key."""
    searches = {parent + _without_action(key): values.pop(key) for key in list(values) if key.endswith(SEARCH)}
    for key, value in values.items():
        searches |= _take_searches(value, f"{parent}{key}.") if isinstance(value, dict) else {}
    return searches


def _class_differs(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether both are objects, `{ClassName: {…}}`, of different classes: arguments of the old must not remain."""
    before, after = _class_names(old), _class_names(new)
    return bool(before and after) and not after <= before


def _class_names(values: dict[str, Any]) -> set[str]:
    return {_without_action(k) for k, v in values.items() if str(k)[:1].isupper() and isinstance(v, dict | None)}


def _explained(error: OmegaConfBaseException, merged: dict[str, Any]) -> ConfigError:
    key = error.full_key or ""
    if "not a ListConfig" in str(error):
        value = OmegaConf.select(OmegaConf.create(merged), key)
        return ConfigError(f"{key} must be a list, {key}=[{value}], got {value!r}")
    if not isinstance(error, ConfigKeyError):
        return ConfigError(f"{key}: {str(error).splitlines()[0]}")
    valid = {field.name for field in fields(error.object_type)}  # type: ignore[arg-type]
    valid |= set() if "." in key else {"base", "groups", "per_loss", *SETTINGS, *_OPTIONS} - {key}
    full_names = {name.rpartition(".")[2]: name for name in valid}  # epochs: general.epochs
    return ConfigError(f"unknown key {key!r}{nearest(full_names.get(key) or key.rpartition('.')[2], valid)}")


def to_yaml(config: DictConfig) -> str:
    return OmegaConf.to_yaml(config, resolve=True)


def parse_saved(text: str, source: str) -> DictConfig:
    """The configuration of a run folder or a checkpoint, checked like any other."""
    try:
        return _checked([_parse(text, source)])[0]
    except ValueError as error:
        raise ConfigError(f"{source}: {error}") from None


def with_overrides(config: DictConfig, overrides: Sequence[str], allowed: Sequence[str]) -> DictConfig:
    """A saved configuration with changes to the allowed keys; a variant, `evaluation=l2`, is merged into its group."""
    for text in overrides:
        if not text.startswith(tuple(allowed)):
            raise ConfigError(f"{text}: only {', '.join(allowed)} of a run can be changed")
    layers = [_parse_override(text) for text in overrides]
    saved: Any = OmegaConf.to_container(config)
    return _checked([saved, *_files(_variants(layers, default=())), *layers])[0]


def differences(first: DictConfig, second: DictConfig, ignore: Sequence[str] = MACHINE) -> list[str]:
    """Dotted keys in which two configurations differ."""
    return list(differing([OmegaConf.to_container(first), OmegaConf.to_container(second)], ignore))
