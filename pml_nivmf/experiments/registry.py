"""The one place where names in a configuration become objects.

Only classes of the modules below can be named, and what a user adds with `register`; a configuration can never reach an
arbitrary import.
"""

import importlib.util
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from pytorch_metric_learning import distances as pml_distances
from pytorch_metric_learning import losses as pml_losses
from pytorch_metric_learning import miners, reducers, regularizers, samplers

from .. import data, distances, losses
from .. import models as trunks
from .errors import ConfigError, nearest

# Modules also hold what they import themselves: where a kind has a base class, only its subclasses count.
_BASES: dict[str, type] = {"optimizer": torch.optim.Optimizer, "scheduler": torch.optim.lr_scheduler.LRScheduler}
# What the modules below hold for code, and no experiment can be made of.
_FOR_CODE = {
    "DataSplits",
    "DegradedItems",
    "LabelledItems",
    "EmbeddingHead",
    "GatheredLoss",
    "GatheredMiner",
    "SelfSupervisedLoss",  # wants a second view of every image
    "ReduceLROnPlateau",  # wants a metric to step
}


def _can_be_named(kind: str, name: str, value: object) -> bool:
    if not callable(value) or not name[0].isupper() or name in _FOR_CODE:
        return False
    if name.startswith("Base") or name.endswith("Mixin") or inspect.isabstract(value) or value in _BASES.values():
        return False  # what classes are made from, and no object by itself
    return kind not in _BASES or (inspect.isclass(value) and issubclass(value, _BASES[kind]))


_KINDS: dict[str, dict[str, Callable[..., Any]]] = {
    kind: {
        name: value for module in modules for name, value in vars(module).items() if _can_be_named(kind, name, value)
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
_UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")
# Arguments that hold objects themselves, and what kind they are of.
_NESTED = {
    "distance": "distance",
    "reducer": "reducer",
    "weight_regularizer": "regularizer",
    "embedding_regularizer": "regularizer",
    "probabilistic": "loss",
    "guidance": "loss",
    "loss": "loss",  # of CrossBatchMemory
    "losses": "loss",  # a list, of MultipleLosses
    "miner": "miner",
    "miners": "miner",
}

# Whose numbers are numbers only. A plugin's classes may take more than their defaults show.
_CHECKED_PACKAGES = ("pml_nivmf", "pytorch_metric_learning", "torch")

# Arguments whose values other parts of the configuration decide.
_FOLLOWS = {
    "num_classes": "the training classes",
    "embedding_size": "model.embedding_size and the head",
    "in_channels": "the images",
    "num_features": "the features",
}


# Arguments that are given to every class that has them.
_INJECTED = {*_FOLLOWS, "labels", "batch_size", "length_before_new_iter", "params", "optimizer"}


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
    if not file.is_file():
        raise ConfigError(f"there is no plugin file {file}")
    if file.suffix != ".py":
        raise ConfigError(f"--plugin takes a Python file, FILE.py, got {file}")
    spec = importlib.util.spec_from_file_location(f"pml_nivmf_plugin_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    try:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    except ImportError as error:
        raise ConfigError(f"the plugin {file} cannot be imported: {error}") from error


def build(kind: str, config: dict[str, Any], path: str, **injected: Any) -> Any:
    """The object that `{ClassName: {keyword: value}}` describes.

    `injected` values (num_classes, embedding_size, labels, …) are given to every class, nested ones too, that has such
    a parameter and whose configuration does not set it. Those of the data and the model may not be set to another
    value.
    """
    check(kind, config, path)
    _check_injected(config, path, injected)
    (name, given), *_ = config.items()
    path, factory, arguments = f"{path}.{name}", _KINDS[kind][name], dict(given or {})
    for key, nested_kind, value in _nested(arguments):
        built = [build(nested_kind, one, where, **injected) for where, one in _each(value, f"{path}.{key}")]
        arguments[key] = built if isinstance(value, list) else built[0]
    arguments = {key: value for key, value in injected.items() if key in _named_parameters(factory)} | arguments
    try:
        return factory(**arguments)
    except (ImportError, MemoryError):  # no fault of the configuration
        raise
    except Exception as error:  # PML raises plain ones too
        unknown = _UNEXPECTED.search(str(error)) if isinstance(error, TypeError) else None
        if unknown and unknown[1] in arguments:  # **kwargs took it, and what they were handed on to did not
            message = f"{path}: {name} has no argument {unknown[1]!r}{nearest(unknown[1], _named_parameters(factory))}"
            raise ConfigError(message, key=f"{path}.{unknown[1]}") from error
        raise ConfigError(f"{path}: {error}", key=path) from error


def check(kind: str, config: dict[str, Any], path: str) -> None:
    """Refuse unknown classes and arguments and missing ones, nested ones too, without building anything."""
    if config == {}:
        a = "an" if kind.startswith("o") else "a"
        raise ConfigError(f"{path} is empty: name {a} {kind}, {{ClassName: {{…}}}} (see `pml-nivmf list`)", key=path)
    if not isinstance(config, dict) or len(config) != 1:
        raise ConfigError(f"{path} must be one object, {{ClassName: {{…}}}}, got {config!r}", key=path)
    ((name, arguments),) = config.items()
    if name not in _KINDS[kind]:
        raise ConfigError(f"{path}: unknown {kind} {name!r}{nearest(name, known(kind))}", key=path)
    if not isinstance(arguments, dict | None):
        raise ConfigError(f"{path}.{name}: arguments must be a mapping, got {arguments!r}", key=path)
    parameters = _parameters(_KINDS[kind][name])
    for key in arguments or {}:
        if parameters is not None and key not in parameters:
            message = f"{path}.{name}: {name} has no argument {key!r}{nearest(key, parameters)}"
            raise ConfigError(message, key=f"{path}.{name}.{key}")
    _check_complete(_KINDS[kind][name], arguments or {}, f"{path}.{name}")
    _check_types(_KINDS[kind][name], arguments or {}, f"{path}.{name}")
    for key, nested_kind, value in _nested(arguments or {}):
        for where, one in _each(value, f"{path}.{name}.{key}"):
            check(nested_kind, one, where)


def _check_complete(factory: Callable[..., Any], arguments: dict[str, Any], path: str) -> None:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    own = inspect.signature(factory).parameters.values()  # what base classes need, the class may give them
    needed = [p.name for p in own if p.default is p.empty and p.kind in kinds and p.name not in _INJECTED]
    missing = [name for name in needed if name not in arguments]
    if missing:
        raise ConfigError(f"{path} needs {', '.join(missing)}", key=path)


def _check_types(factory: Callable[..., Any], arguments: dict[str, Any], path: str) -> None:
    """Refuse text and collections for what is a number by default: many classes would notice only when they compute.

    Not where the signature announces them, as `pretrained: bool | str = True` does.
    """
    if factory.__module__.partition(".")[0] not in _CHECKED_PACKAGES:
        return
    of_bases_first = [p for s in reversed(_signatures(factory)) for p in s.parameters.values()]
    parameters = {parameter.name: parameter for parameter in of_bases_first}
    for key, value in arguments.items():
        usual = parameters[key].default if key in parameters else None
        if isinstance(usual, bool | int | float) and isinstance(value, str | list | dict):
            if re.search(rf"\b{type(value).__name__}\b", str(parameters[key].annotation)):
                continue
            kind = "true or false" if isinstance(usual, bool) else "a number"
            raise ConfigError(f"{path}.{key} must be {kind}, as {usual} is, got {value!r}", key=f"{path}.{key}")


def _check_injected(config: dict[str, Any], path: str, injected: dict[str, Any]) -> None:
    ((name, arguments),) = config.items()
    for key in _FOLLOWS:
        if key in injected and (arguments or {}).get(key, injected[key]) != injected[key]:
            raise ConfigError(
                f"{path}.{name}.{key} is {arguments[key]}, but {_FOLLOWS[key]} make it {injected[key]}: leave it out",
                key=f"{path}.{name}.{key}",
            )


def _nested(arguments: dict[str, Any]) -> list[tuple[str, str, Any]]:
    """(argument, kind, configuration) of arguments that are objects themselves, or lists of them."""
    return [(key, _NESTED[key], value) for key, value in arguments.items() if key in _NESTED and value is not None]


def _each(value: Any, path: str) -> list[tuple[str, Any]]:
    """(path, object's configuration) of one object, or of every one in a list."""
    if not isinstance(value, list):
        return [(path, value)]
    return [(f"{path}[{index}]", one) for index, one in enumerate(value)]


def _parameters(factory: Callable[..., Any]) -> list[str] | None:
    """Names of all arguments, or None if any name will do: **kwargs that no base class of ours or PML's takes in."""
    if inspect.isclass(factory) and _takes_anything(factory):
        return None
    return _named_parameters(factory)


def _named_parameters(factory: Callable[..., Any]) -> list[str]:
    """Names of the arguments that signatures spell out; for a class with **kwargs, those of its base classes too."""
    names: dict[str, None] = {}
    for signature in _signatures(factory):
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        names.update((p.name, None) for p in signature.parameters.values() if p.kind in kinds)
    names.pop("self", None)
    return list(names)


def _signatures(factory: Callable[..., Any]) -> list[inspect.Signature]:
    """The constructor's signature and, as long as **kwargs hand arguments on, those of the base classes."""
    if not inspect.isclass(factory):
        return [inspect.signature(factory)]
    found: list[inspect.Signature] = []
    for base in factory.__mro__:
        if base in (torch.nn.Module, object):
            break
        found.append(inspect.signature(base.__init__))  # type: ignore[misc]
        if not _has_kwargs(found[-1]):
            break
    return found


def _takes_anything(factory: type) -> bool:
    signatures = _signatures(factory)
    return bool(signatures) and _has_kwargs(signatures[-1])


def _has_kwargs(signature: inspect.Signature) -> bool:
    return any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
