"""From names and overrides to one checked configuration.

An experiment file names variants of groups and says only what differs:

    description: …
    groups: {dataset: glyphs, model: conv_net, schedule: [cosine, early_stopping]}
    compare: [proxy_nca, el_nivmf]      # losses and
    seeds: 3                            # number of seeds for `pml-nivmf compare`
    general: {epochs: 8}
    per_loss: {proxy_nca: {optimizers: {proxy_lr: 0.1}, groups: {schedule: step}}}      # only where that loss is chosen

For each group, `GROUP/default.yaml` comes first, then the named variants in order, then the experiment's own section,
then that of `per_loss` for the chosen variant of `loss`, then the command line: `general.epochs=3`, `loss=proxy_anchor`
(a variant), `loss.NonIsotropicVMFLoss.n_samples=5`.
Mappings merge key by key; an object `{ClassName: …}` is replaced where the class differs. `key~OVERRIDE~` replaces
instead of merging, `key~DELETE~` removes a key, in files and on the command line.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from ..checks import check_count
from . import per_loss
from .config_checks import as_names, check_keys, checked, source_of
from .config_files import COMMAND_LINE, find_experiment, find_variant, load, mapping, parse_yaml
from .errors import ConfigError
from .merging import DELETE, merge
from .schema import GROUPS

_EXPERIMENT_KEYS = ("description", "groups", "compare", "seeds", "per_loss", "sweep", *GROUPS)
_DEFAULT_SEEDS, _MOST_SEEDS = 5, 1000


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
    sweep: Any = None  # the section as it stands in the file; `sweeps.section` reads it

    @property
    def loss_variant(self) -> str:
        """The name that the loss goes by."""
        return _loss_variant(self.variants)


def compose(name_or_path: str, overrides: Sequence[str] = ()) -> Composed:
    """The configuration of an experiment, by name or by path of a YAML file, with command-line overrides."""
    path = find_experiment(name_or_path)
    experiment = load(path)
    check_keys(experiment, _EXPERIMENT_KEYS, "", str(path), mergeable=GROUPS)
    assignments = [_parse_override(text) for text in overrides]
    groups = experiment.get("groups", {})
    loss = _loss_variant(_choose_variants(groups, assignments, path))
    section = per_loss.section_for(loss, experiment.get("per_loss", {}), path)
    variants = _choose_variants(groups | section.pop("groups", {}), assignments, path)
    merged, sources = _merge_variants(variants, assignments, path)
    own = {key: value for key, value in experiment.items() if key.split("~")[0] in GROUPS}
    merge(merged, own, str(path), "", sources)
    merge(merged, section, per_loss.source_name(loss, path), "", sources)
    for assignment in assignments:
        if assignment.variants is None:
            merge(merged, assignment.nested(), COMMAND_LINE, "", sources)
    config = checked(merged, sources)
    return Composed(
        name=experiment_name(name_or_path),
        description=str(experiment.get("description", "")),
        config=config,
        variants=variants,
        compare=_losses_to_compare(experiment, path),
        seeds=_seeds(experiment, path),
        sources=sources,
        sweep=experiment.get("sweep"),
    )


def experiment_name(name_or_path: str) -> str:
    """What run folders are called after: a packaged experiment's name as it is, or the stem of a user's file."""
    return Path(name_or_path).stem if name_or_path.endswith((".yaml", ".yml")) else name_or_path


def _merge_variants(
    variants: dict[str, list[str]], assignments: list["_Assignment"], path: Path
) -> tuple[dict[str, Any], dict[str, str]]:
    """The chosen files of every group, and where each key comes from."""
    merged: dict[str, Any] = {group: {} for group in GROUPS}
    sources: dict[str, str] = {}
    from_command_line = {a.key for a in assignments if a.variants is not None}
    for group, names in variants.items():
        for name in ["default", *names]:
            file = find_variant(group, name, COMMAND_LINE if group in from_command_line else str(path))
            merge(merged, {group: load(file)}, str(file), "", sources)
    return merged, sources


def _seeds(experiment: dict[str, Any], path: Path) -> int:
    seeds = check_count(f"{path}: seeds", experiment.get("seeds", _DEFAULT_SEEDS))
    if seeds > _MOST_SEEDS:
        raise ConfigError(f"{path}: seeds must be at most {_MOST_SEEDS}, got {seeds}")
    return seeds


def _losses_to_compare(experiment: dict[str, Any], path: Path) -> list[str]:
    names = as_names(experiment.get("compare", []), "compare", str(path))
    for name in names:
        find_variant("loss", name, f"{path}: compare")
    return names


def _loss_variant(variants: dict[str, list[str]]) -> str:
    return variants["loss"][-1] if variants["loss"] else "default"


def located(error: ConfigError, sources: dict[str, str]) -> ConfigError:
    """The same error with the file that set the key at fault in front."""
    return ConfigError(f"{source_of(error.key, sources)}: {error}") if error.key else error


def to_yaml(config: DictConfig) -> str:
    return OmegaConf.to_yaml(config, resolve=True)


def load_saved(path: Path) -> DictConfig:
    """A run folder's configuration, checked like any other."""
    return _checked_saved(load(path), str(path))


def parse_saved(text: Any, source: str) -> DictConfig:
    """The same from a text, such as a checkpoint's."""
    try:
        return _checked_saved(mapping(parse_yaml(str(text)), source), source)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{source} holds no configuration: {error}") from None


def _checked_saved(values: dict[str, Any], source: str) -> DictConfig:
    return checked({group: {} for group in GROUPS} | values, dict.fromkeys(GROUPS, source))


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
        raise ConfigError(f"{COMMAND_LINE}: expected key=value or key{DELETE}, got {text!r}")
    try:
        parsed = parse_yaml(value) if value else None
    except ValueError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{COMMAND_LINE}: the value of {text[:200]!r} is not YAML: {reason}") from None
    names = [parsed] if isinstance(parsed, str) else parsed
    is_choice = key in GROUPS and isinstance(names, list) and all(isinstance(name, str) for name in names)
    return _Assignment(key, parsed, names if is_choice else None)


def _choose_variants(chosen: Any, assignments: list[_Assignment], path: Path) -> dict[str, list[str]]:
    if not isinstance(chosen, dict):
        raise ConfigError(f"{path}: groups must be a mapping of group to variant names, got {chosen!r}")
    check_keys(chosen, GROUPS, "groups", str(path))
    variants = {group: as_names(chosen.get(group, []), f"groups.{group}", str(path)) for group in GROUPS}
    for assignment in assignments:
        if assignment.variants is not None:
            variants[assignment.key] = assignment.variants
    return {group: [name for name in names if name != "default"] for group, names in variants.items()}
