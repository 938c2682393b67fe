"""Where configurations are: finding experiments and variants by name or path, and reading YAML."""

import re
from pathlib import Path
from typing import Any

import yaml

from .. import yaml_limits
from .errors import ConfigError, nearest
from .schema import GROUPS

COMMAND_LINE = "command line"


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # libyaml's where there is one
    """YAML without code, in which 1e-3 is a number, as YAML 1.2 and every user have it."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


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
    first = _read(path).splitlines()[:1]
    if first and first[0].startswith("#"):
        return first[0].lstrip("# ")
    return str((load(path) or {}).get("description", ""))


def loss_class(variant: str) -> str:
    """The class that a variant of the group `loss` names."""
    return str(next(iter(load(find_variant("loss", variant, COMMAND_LINE)))))


def find_experiment(name_or_path: str) -> Path:
    given = Path(name_or_path)
    if given.suffix in (".yaml", ".yml"):
        if not given.exists():
            raise ConfigError(f"there is no file {given}")
        return _with_a_name(given)
    path = config_folder() / f"{name_or_path}.yaml"
    if name_or_path not in experiment_names():
        raise ConfigError(f"unknown experiment {name_or_path!r}{nearest(name_or_path, experiment_names())}")
    return path


def find_variant(group: str, name: str, source: str) -> Path:
    """A packaged variant by name, or a user's own file by its path."""
    if name.endswith((".yaml", ".yml")):
        if not Path(name).exists():
            raise ConfigError(f"{source}: {group}: there is no file {name}")
        return _with_a_name(Path(name))
    if name not in variant_names(group):
        raise ConfigError(f"{source}: unknown {group} {name!r}{nearest(name, variant_names(group))}")
    return config_folder() / group / f"{name}.yaml"


def _with_a_name(path: Path) -> Path:
    """Run folders are called after files: `...yaml` would lead to `..`, out of them."""
    if not path.stem.strip(". "):
        raise ConfigError(f"{path} has no name before .yaml that a folder could be called: rename it")
    return path


def parse_yaml(text: str) -> Any:
    """Plain data; a ValueError says what is wrong, also with files that are too large to be meant seriously."""
    try:
        yaml_limits.check_text(text, _Loader)
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, OverflowError) as error:
        raise ValueError(str(error)) from None


def load(path: Path) -> dict[str, Any]:
    try:
        return mapping(parse_yaml(_read(path)), str(path))
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{path} is not YAML that can be read: {error}") from None


def mapping(loaded: Any, source: str) -> dict[str, Any]:
    if not isinstance(loaded, dict | None):
        raise ConfigError(f"{source} must hold a mapping of keys to values, got {type(loaded).__name__}")
    return loaded or {}


def _read(path: Path) -> str:
    """Not more than may be parsed, whatever the file is."""
    with path.open("rb") as file:
        return file.read(yaml_limits.MOST_BYTES + 1).decode()
