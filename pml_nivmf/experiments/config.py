"""From an experiment's name and overrides to one checked configuration.

experiment_configs/README.md describes the files. Merged in this order: `GROUP/default.yaml`, the named variants, the
sections of the base and of the experiment, those of `per_loss` for the chosen loss, the command line (see
`merging`). Configurations run no code and do not read the environment.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from ..checks import check_count, nearest
from ..reports.settings import differing
from .merging import DELETE, mapping, merge, take_searches
from .schema import GROUPS, SETTINGS, ExperimentConfig
from .schema import ConfigError as ConfigError  # for all who read configurations

COMMAND_LINE = "command line"
# Keys of an experiment's file beside `base`, `groups`, the groups and `per_loss`, with their defaults.
_OPTIONS = {"description": "", "compare": [], "vary": "", "seeds": 5, "sweep": None, "fit": None}
_YAML = (".yaml", ".yml")
_LONGEST_NAME = 100  # of a folder, in characters
_REFERENCE = re.compile(r"\$\{\w+(\.\w+)*\}")
_Layer = tuple[str, dict[str, Any]]  # source and values


@dataclass
class Composed:
    """A checked configuration and where it comes from."""

    name: str
    config: DictConfig
    loss_variant: str
    compare: list[str]  # losses that `compare` runs by default
    vary: str  # KEY=VALUE,VALUE,… that `compare` runs by default
    seeds: int  # seeds that `compare` runs by default
    sources: dict[str, str]  # dotted key -> file that set it last
    sweep: Any  # the file's section as it is
    searches: dict[str, Any]  # dotted key -> space of key~SEARCH~
    fit: Any  # of `own_images`


def located(error: ConfigError, sources: dict[str, str]) -> ConfigError:
    """The same error, preceded by the file that set the key at fault."""
    if error.key is None:
        return error
    key = error.key.partition("[")[0]
    while key and key not in sources:
        key = key.rpartition(".")[0]
    return ConfigError(f"{sources.get(key, 'defaults')}: {error}")


def config_folder() -> Path:
    """`experiment_configs` of the checkout, or the copy inside an installed package."""
    package = Path(__file__).parents[1]
    installed = package / "experiment_configs"
    return installed if installed.exists() else package.parent / "experiment_configs"


@cache
def variant_names(group: str) -> list[str]:
    """The packaged variants of a group or, for the group "experiment", all experiments."""
    folder = _folder(group)
    paths = [path.relative_to(folder) for path in folder.rglob("*.yaml") if path.name != "tuned.yaml"]
    return sorted(path.with_suffix("").as_posix() for path in paths if path.parts[0] not in GROUPS)


def _folder(group: str) -> Path:
    return config_folder() / ("" if group == "experiment" else group)


def find_variant(group: str, name: str, source: str = COMMAND_LINE) -> Path:
    """The file of a variant or an experiment, by name or by a user's path."""
    if name.endswith(_YAML):
        if not Path(name).exists():
            raise ConfigError(f"{source}: {group}: there is no file {name}")
        return Path(name)
    if name not in variant_names(group):
        raise ConfigError(f"{source}: unknown {group} {name!r}{nearest(name, variant_names(group))}")
    return _folder(group) / f"{name}.yaml"


def experiment_name(name_or_path: str) -> str:
    """The name of the experiment's run folders: a packaged experiment's name, or the stem of a user's file."""
    return Path(name_or_path).stem if name_or_path.endswith(_YAML) else name_or_path


def name_with_overrides(name_or_path: str, overrides: Sequence[str], ignored: Sequence[str] = ()) -> str:
    """The experiment's name and what overrides change, such as `glyphs-epochs-3`: different runs, different folders."""
    changed = [text for text in overrides if text.partition("=")[0] not in ("loss", "general.seed", *ignored)]
    name = "-".join([experiment_name(name_or_path), *map(short_override, sorted(changed))])
    name = name.removeprefix("own_images-")  # the name of the images' folder follows
    if len(name) > _LONGEST_NAME:
        name = f"{name[: _LONGEST_NAME - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return name


def short_override(text: str) -> str:
    """`general.epochs=3` as epochs-3, a variant such as `model=resnet50` and a path by its own name, for folders."""
    key, _, value = text.partition("=")
    is_path = key.endswith((".root", ".npz", ".weights_file"))
    words = [Path(value.strip('"')).stem] if is_path else [value] if key in GROUPS else [key.rpartition(".")[2], value]
    return re.sub(r"[^\w.+-]+", "_", "-".join(words))


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
    return mapping(content, source)


def compose(name_or_path: str, overrides: Sequence[str] = ()) -> Composed:
    """The configuration of an experiment, by name or by path of a YAML file, with command-line overrides."""
    experiments = _with_bases(name_or_path)
    source, options = experiments[-1][0], dict[str, Any](_OPTIONS)
    for _, experiment in experiments:
        options |= {key: experiment.pop(key) for key in _OPTIONS if key in experiment}
    per_loss = [(file, experiment.pop("per_loss", {})) for file, experiment in experiments]
    command_line = [(COMMAND_LINE, _parse_override(text)) for text in overrides]
    loss = _variants([*experiments, *command_line])["loss"][-1]
    layers = [*experiments, *(_section_of(loss, sections, file) for file, sections in per_loss), *command_line]
    variants = _variants(layers)
    files = [(group, find_variant(group, name, source)) for group in GROUPS for name in variants[group]]
    merged, sources = dict[str, Any](), dict[str, str]()
    for layer_source, values in [*((str(file), {group: load(file)}) for group, file in files), *layers]:
        merge(merged, values, layer_source, sources)
    merged.pop("groups", None)
    searches = take_searches(merged)
    return Composed(
        name=experiment_name(name_or_path),
        config=_checked(merged, sources),
        loss_variant=variants["loss"][-1],
        compare=_read_names("loss", options["compare"], f"{source}: compare"),
        vary=str(options["vary"]),
        seeds=check_count(f"{source}: seeds", options["seeds"]),
        sources=sources,
        sweep=options["sweep"],
        searches=searches,
        fit=options["fit"],
    )


def _with_bases(name_or_path: str, source: str = COMMAND_LINE) -> list[_Layer]:
    """The experiment's file, preceded by the file of its base, and so on."""
    path = find_variant("experiment", name_or_path, source)
    experiment = load(path)
    base = experiment.pop("base", None)
    return [*([] if base is None else _with_bases(str(base), f"{path}: base")), (str(path), experiment)]


def _section_of(loss: str, sections: Any, source: str) -> _Layer:
    """The section of `per_loss` for the chosen loss."""
    sections = mapping(sections, f"{source}: per_loss")
    _read_names("loss", list(sections), f"{source}: per_loss")
    return f"{source}: per_loss.{loss}", mapping(sections.get(loss), f"{source}: per_loss.{loss}")


def _variants(layers: Sequence[_Layer]) -> dict[str, list[str]]:
    """The files of each group in the order of merging; the last layer that names variants of a group chooses them."""
    variants = {group: ["default"] for group in GROUPS}
    for source, values in layers:
        for group, names in mapping(values.get("groups"), f"{source}: groups").items():
            if group not in GROUPS:
                raise ConfigError(f"{source}: unknown key 'groups.{group}'{nearest(str(group), GROUPS)}")
            variants[group] = ["default", *_read_names(group, names, source)]
    return variants


def _read_names(group: str, names: Any, source: str) -> list[str]:
    """One name or a list of names of existing variants."""
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{source}: expected the name of a {group} or a list of names, got {names!r}")
    for name in names:
        find_variant(group, name, source)
    return names


def _parse_override(text: str) -> dict[str, Any]:
    """`a.b=1` as {a: {b: 1}}, and the choice of a variant, `loss=cos`, as {groups: {loss: cos}}."""
    key, equals, value_text = text.partition("=")
    if not equals and not key.endswith(DELETE):
        raise ConfigError(f"{COMMAND_LINE}: expected key=value or key{DELETE}, got {text!r}")
    value = _parse(f"value: {value_text}", f"{COMMAND_LINE}: {text!r}")["value"]
    if key in GROUPS and isinstance(value, str | list):
        key = f"groups.{key}"
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def _checked(merged: dict[str, Any], sources: dict[str, str]) -> DictConfig:
    """The merged values with types, defaults and resolved references."""
    try:
        config = OmegaConf.merge(OmegaConf.structured(ExperimentConfig), merged)
        OmegaConf.resolve(config)
    except OmegaConfBaseException as error:
        raise located(_explained(error, merged), sources) from None
    if config.general.amp == "False":  # YAML reads `off` as false
        config.general.amp = "off"
    try:
        for key, check in SETTINGS.items():
            check(key, OmegaConf.select(config, key))
    except ValueError as error:
        raise located(ConfigError(str(error), key), sources) from None
    return config  # type: ignore[return-value]


def _explained(error: OmegaConfBaseException, merged: dict[str, Any]) -> ConfigError:
    key = error.full_key or ""
    if "not a ListConfig" in str(error):
        value = OmegaConf.select(OmegaConf.create(merged), key)
        return ConfigError(f"{key} must be a list, {key}=[{value}], got {value!r}", key)
    if not isinstance(error, ConfigKeyError):
        return ConfigError(f"{key}: {str(error).splitlines()[0]}", key)
    valid = {field.name for field in fields(error.object_type)}  # type: ignore[arg-type]
    valid |= set() if "." in key else {"base", "groups", "per_loss", *SETTINGS, *_OPTIONS} - {key}
    full_names = {name.rpartition(".")[2]: name for name in valid}  # epochs: general.epochs
    return ConfigError(f"unknown key {key!r}{nearest(full_names.get(key) or key.rpartition('.')[2], valid)}", key)


def to_yaml(config: DictConfig) -> str:
    return OmegaConf.to_yaml(config, resolve=True)


def parse_saved(text: str, source: str) -> DictConfig:
    """The configuration of a run folder or a checkpoint, checked like any other."""
    values = _parse(text, source)
    return _checked(values, dict.fromkeys(values, source))


def with_overrides(config: DictConfig, overrides: Sequence[str], allowed: Sequence[str]) -> DictConfig:
    """A saved configuration with changes to the allowed keys; a variant, `evaluation=l2`, is merged into its group."""
    merged: Any = OmegaConf.to_container(config)
    for text in overrides:
        if not text.startswith(tuple(allowed)):
            raise ConfigError(f"{COMMAND_LINE}: {text}: only {', '.join(allowed)} of a run can be changed")
        layer = _parse_override(text)
        for group, names in layer.pop("groups", {}).items():
            for name in _read_names(group, names, COMMAND_LINE):
                merge(merged, {group: load(find_variant(group, name))}, name, {})
        merge(merged, layer, COMMAND_LINE, {})
    return _checked(merged, dict.fromkeys(merged, COMMAND_LINE))


def differences(first: DictConfig, second: DictConfig, ignore: Sequence[str]) -> list[str]:
    """Dotted keys in which two configurations differ."""
    return list(differing([OmegaConf.to_container(first), OmegaConf.to_container(second)], ignore))
