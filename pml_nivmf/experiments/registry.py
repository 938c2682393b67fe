"""The one place where names in a configuration become objects.

Only classes of the modules below can be named, and what a user adds with `register`; a configuration can never reach an
arbitrary import.
"""

import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from pytorch_metric_learning import distances as pml_distances
from pytorch_metric_learning import losses as pml_losses
from pytorch_metric_learning import miners, reducers, regularizers, samplers

from .. import data, distances, losses
from .. import models as trunks
from .config import ConfigError, nearest

_KINDS: dict[str, dict[str, Callable[..., Any]]] = {
    kind: {
        name: value
        for module in modules
        for name, value in vars(module).items()
        if callable(value) and not name.startswith("_") and name[0].isupper()
    }
    for kind, modules in {
        "dataset": (data,),
        "trunk": (trunks,),
        "loss": (pml_losses, losses),
        "distance": (pml_distances, distances),
        "miner": (miners,),
        "sampler": (samplers,),
        "reducer": (reducers,),
        "regularizer": (regularizers,),
        "optimizer": (torch.optim,),
        "scheduler": (torch.optim.lr_scheduler,),
    }.items()
}
# Arguments that hold objects themselves, and what kind they are of.
_NESTED = {
    "distance": "distance",
    "reducer": "reducer",
    "weight_regularizer": "regularizer",
    "embedding_regularizer": "regularizer",
    "probabilistic": "loss",
    "guidance": "loss",
}


def register(kind: str, factory: Callable[..., Any], name: str | None = None) -> Callable[..., Any]:
    """Let configurations name `factory` as an object of `kind`, as in `register("loss", MyLoss)`; returns it."""
    if kind not in _KINDS:
        raise ConfigError(f"unknown kind {kind!r}{nearest(kind, list(_KINDS))}")
    _KINDS[kind][name or factory.__name__] = factory
    return factory


def known(kind: str) -> list[str]:
    return sorted(_KINDS[kind])


def load_plugin(path: str) -> None:
    """Run a user's Python file, which calls `register`. It is code the user names, never a configuration."""
    file = Path(path)
    if not file.exists():
        raise ConfigError(f"there is no plugin file {file}")
    spec = importlib.util.spec_from_file_location(f"pml_nivmf_plugin_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


def build(kind: str, config: dict[str, Any], path: str, **injected: Any) -> Any:
    """The object that `{ClassName: {keyword: value}}` describes.

    `injected` values (num_classes, embedding_size, labels, …) are given to every class, nested ones too, that has such
    a parameter and whose configuration does not set it.
    """
    check(kind, config, path)
    (name, given), *_ = config.items()
    path, factory, arguments = f"{path}.{name}", _KINDS[kind][name], dict(given or {})
    for key, nested_kind, value in _nested(arguments):
        arguments[key] = build(nested_kind, value, f"{path}.{key}", **injected)
    parameters = _parameters(factory)
    arguments = {key: value for key, value in injected.items() if key in parameters} | arguments
    try:
        return factory(**arguments)
    except (TypeError, ValueError, AssertionError, FileNotFoundError) as error:
        raise ConfigError(f"{path}: {error}", key=path) from error


def check(kind: str, config: dict[str, Any], path: str) -> None:
    """Refuse unknown classes and arguments, nested ones too, without building anything."""
    (name, arguments), *_ = config.items()
    if name not in _KINDS[kind]:
        raise ConfigError(f"{path}: unknown {kind} {name!r}{nearest(name, known(kind))}", key=path)
    if not isinstance(arguments, dict | None):
        raise ConfigError(f"{path}.{name}: arguments must be a mapping, got {arguments!r}", key=path)
    parameters = _parameters(_KINDS[kind][name])
    for key in arguments or {}:
        if key not in parameters:
            message = f"{path}.{name}: {name} has no argument {key!r}{nearest(key, parameters)}"
            raise ConfigError(message, key=f"{path}.{name}.{key}")
    for key, nested_kind, value in _nested(arguments or {}):
        check(nested_kind, value, f"{path}.{name}.{key}")


def _nested(arguments: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """(argument, kind, object's configuration) of arguments that are objects themselves."""
    return [
        (key, _NESTED[key], value) for key, value in arguments.items() if key in _NESTED and isinstance(value, dict)
    ]


def _parameters(factory: Callable[..., Any]) -> list[str]:
    """Names of all arguments; for a class with **kwargs, those of its base classes too."""
    sources = [base.__init__ for base in factory.__mro__] if inspect.isclass(factory) else [factory]  # type: ignore[misc]
    names: dict[str, None] = {}
    for source in sources:
        parameters = inspect.signature(source).parameters.values()
        names.update((p.name, None) for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    names.pop("self", None)
    return list(names)
