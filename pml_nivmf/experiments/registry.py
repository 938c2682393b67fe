"""The one place where names in a configuration become objects.

Only classes of the modules below can be named, and what a user adds with `register`: a configuration cannot import
anything else.
"""

import inspect
import runpy
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pytorch_metric_learning import distances as pml_distances
from pytorch_metric_learning import losses as pml_losses
from pytorch_metric_learning import miners, reducers, regularizers, samplers
from torch import nn

from .. import data, distances, losses, models
from ..checks import nearest
from ..losses.softmax import Softmax
from .config import ConfigError

Factory = Callable[..., Any]
# For each kind, where its classes are and the type of its objects.
_SOURCES: dict[str, tuple[tuple[Any, ...], type]] = {
    "dataset": ((data,), data.DataSplits),
    "trunk": ((models,), nn.Module),
    "loss": ((pml_losses, losses), nn.Module),
    "softmax": ((losses,), Softmax),
    "distance": ((pml_distances, distances), nn.Module),
    "miner": ((miners,), object),
    "sampler": ((samplers,), object),
    "reducer": ((reducers,), object),
    "regularizer": ((regularizers,), object),
    "optimizer": ((torch.optim,), torch.optim.Optimizer),
    "scheduler": ((torch.optim.lr_scheduler,), torch.optim.lr_scheduler.LRScheduler),
}
# Classes for use in code, and classes that need more than a run provides: a second view of every image, a metric.
_NOT_NAMED = {"EmbeddingHead", "GatheredLoss", "GatheredMiner", "SelfSupervisedLoss", "ReduceLROnPlateau"}


def _can_be_named(name: str, value: object, expected: type) -> bool:
    """Concrete classes of the expected type, and the functions that load data sets."""
    if not name[0].isupper() or name in _NOT_NAMED:
        return False
    if not inspect.isclass(value):
        return expected is data.DataSplits
    is_base = name.startswith("Base") or name.endswith("Mixin") or inspect.isabstract(value) or value is expected
    return issubclass(value, expected) and not is_base


_KINDS: dict[str, dict[str, Factory]] = {
    kind: {name: item for module in modules for name, item in vars(module).items() if _can_be_named(name, item, type_)}
    for kind, (modules, type_) in _SOURCES.items()
}
# Arguments that hold objects are named after their kind, as `weight_regularizer` is, except these.
_KIND_OF = {"probabilistic": "loss", "guidance": "loss", "losses": "loss", "miners": "miner", "schedulers": "scheduler"}
# Arguments that no configuration sets.
_DECIDED = {"num_classes", "embedding_size", "in_channels", "num_features"}


def register(kind: str, factory: Factory, name: str | None = None) -> Factory:
    """Let configurations name `factory` as an object of `kind`, as in `register("loss", MyLoss)`; returns it."""
    name = name or factory.__name__
    if kind not in _KINDS:
        raise ConfigError(f"unknown kind {kind!r}{nearest(kind, _KINDS)}")
    if not name[:1].isupper():  # this is how configurations tell objects from other mappings
        raise ConfigError(f"the name of a {kind} must begin with a capital letter, got {name!r}")
    _KINDS[kind][name] = factory
    return factory


def known(kind: str) -> list[str]:
    return sorted(_KINDS[kind])


def load_plugins(paths: Sequence[str]) -> None:
    """Run a user's Python files, which call `register`. Only the user can name them, never a configuration."""
    for path in paths:
        try:
            runpy.run_path(path, run_name=f"pml_nivmf_plugin_{Path(path).stem}")
        except (ImportError, OSError, SyntaxError) as error:
            raise ConfigError(f"the plugin {path} cannot be imported: {error}") from error


def check(kind: str, config: Any, path: str) -> None:
    """Refuse unknown classes and arguments, of nested objects too; builds nothing."""
    _, arguments, path = _read(kind, config, path)
    _with_objects(arguments, path, check)


def build(kind: str, config: Any, path: str, **injected: Any) -> Any:
    """The object that `{ClassName: {keyword: value}}` describes.

    `injected` values (num_classes, embedding_size, labels, …) are passed to every class, nested ones too, that has
    such a parameter and whose configuration does not set it.
    """
    name, arguments, path = _read(kind, config, path)
    arguments = _with_objects(arguments, path, partial(build, **injected))
    parameters, _ = _parameters(_KINDS[kind][name])
    try:
        result = _KINDS[kind][name](**{key: injected[key] for key in injected if key in parameters} | arguments)
    except Exception as error:  # PML raises plain exceptions too, and a library may be missing
        raise ConfigError(f"{path}: {error}") from error
    expected = _SOURCES[kind][1]
    if not isinstance(result, expected):
        raise ConfigError(f"{path}: a {kind} must be a {expected.__name__}, got a {type(result).__name__}")
    return result


def _read(kind: str, config: Any, path: str) -> tuple[str, dict[str, Any], str]:
    """The class name, the arguments and their path in the configuration, all checked except for nested objects."""
    if kind == "dataset" and isinstance(config, dict):
        config = {key: value for key, value in config.items() if key not in ("splits", "split")}  # see `schema`
    if not isinstance(config, dict) or len(config) != 1:
        names, classes = config if isinstance(config, dict) else (), _KINDS[kind]
        meant = [f"{path}.{name}.{key}" for name in names for key in names if name in classes and key not in classes]
        hint = f"; did you mean {meant[0]}?" if meant else ""
        raise ConfigError(f"{path} must name one {kind}, {{ClassName: {{…}}}}, got {config!r}{hint}")
    ((name, arguments),) = config.items()
    if name not in _KINDS[kind]:
        raise ConfigError(f"{path}: unknown {kind} {name!r}{nearest(name, known(kind))}")
    path = f"{path}.{name}"
    if not isinstance(arguments, dict | None):
        raise ConfigError(f"{path}: arguments must be a mapping, got {arguments!r}")
    parameters, accepts_any = _parameters(_KINDS[kind][name])
    for key in arguments or {}:
        if key not in parameters and not accepts_any:
            raise ConfigError(f"{path}: {name} has no argument {key!r}{nearest(key, parameters)}")
        if key in _DECIDED:
            raise ConfigError(f"{path}.{key}: the data and the model decide this: leave it out")
    return name, arguments or {}, path


def _with_objects(arguments: dict[str, Any], path: str, function: Factory) -> dict[str, Any]:
    """The arguments, with `function(kind, config, path)` in place of objects and of the objects in lists."""
    result = dict(arguments)
    for key, value in arguments.items():
        kind = _KIND_OF.get(key, key.rpartition("_")[2])
        if kind in _KINDS and isinstance(value, list):
            result[key] = [function(kind, inner, f"{path}.{key}[{index}]") for index, inner in enumerate(value)]
        elif kind in _KINDS and isinstance(value, dict | str):  # `distance: KLDistance` lacks its braces
            result[key] = function(kind, value, f"{path}.{key}")
    return result


def _parameters(factory: Factory) -> tuple[set[str], bool]:
    """The names of the arguments, with those that **kwargs pass to base classes, and whether any name is accepted."""
    names: set[str] = set()
    for base in inspect.getmro(factory) if inspect.isclass(factory) else [factory]:
        if base in (nn.Module, object):
            break
        parameters = inspect.signature(base).parameters.values()
        names |= {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            return names, False
    return names, True
