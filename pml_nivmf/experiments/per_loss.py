"""What an experiment says for single losses, so that `compare` runs each with settings of its own.

    per_loss:
      proxy_anchor: {optimizers: {proxy_lr: 0.02}}
      margin: {groups: {miner: distance_weighted}, loss: {MarginLoss: {beta: 1.0}}}

A section holds where the variant of `loss` that it is named after is chosen: `groups` choose variants, all else is
merged after the experiment's own sections and before the command line.
"""

from pathlib import Path
from typing import Any

from .config_checks import as_names, check_keys
from .config_files import find_variant, loss_class
from .errors import ConfigError
from .merging import split_action
from .schema import GROUPS

_CHOOSABLE = tuple(group for group in GROUPS if group != "loss")  # the loss is what the section is for


def section_for(loss: str, sections: Any, path: Path) -> dict[str, Any]:
    """The section of one loss, {} if there is none; all sections are checked, whichever is asked for."""
    if not isinstance(sections, dict):
        raise ConfigError(f"{path}: per_loss must be a mapping of loss variants to settings, got {sections!r}")
    for name, section in sections.items():
        find_variant("loss", str(name), f"{path}: per_loss")
        _check(str(name), section, path)
    return dict(sections.get(loss) or {})


def source_name(loss: str, path: Path) -> str:
    """How errors call a loss's section."""
    return f"{path}: per_loss.{loss}"


def _check(name: str, section: Any, path: Path) -> None:
    source = source_name(name, path)
    if not isinstance(section, dict):
        raise ConfigError(f"{source} must be a mapping of groups to settings, got {section!r}")
    check_keys(section, ("groups", *GROUPS), "", source, mergeable=GROUPS)
    groups = section.get("groups", {})
    if not isinstance(groups, dict):
        raise ConfigError(f"{source}.groups must be a mapping of group to variant names, got {groups!r}")
    check_keys(groups, _CHOOSABLE, "groups", source)
    for group, value in groups.items():
        for variant in as_names(value, f"groups.{group}", source):
            find_variant(group, variant, source)
    _check_class(name, section, source)


def _check_class(name: str, section: dict[str, Any], source: str) -> None:
    """A section may set arguments of its loss, but not make it another one."""
    expected = loss_class(name)
    for key, value in section.items():
        if split_action(key)[0] == "loss" and (not isinstance(value, dict) or _classes(value) != {expected}):
            raise ConfigError(f"{source}.loss: {name} is a {expected}, so give {{{expected}: {{…}}}}, got {value!r}")


def _classes(loss: dict[str, Any]) -> set[str]:
    return {split_action(str(key))[0] for key in loss}
