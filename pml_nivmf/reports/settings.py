"""The last sections of the page: configurations and their differences, environment, commands to reproduce the runs."""

import argparse
import json
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from .run_folders import RunSet, run_folders_in

_VERSIONS = ("pml_nivmf", "git_commit", "python", "platform", "cuda")
NOT_SETTINGS = ("general.seed", "general.run_dir", "general.threads")


def environment(runs: RunSet) -> dict[str, list[Any]]:
    """The different values of each version, by name."""
    environments = [run.environment for run in runs.runs]
    records = [{name: e.get(name) for name in _VERSIONS} | e.get("packages", {}) for e in environments]
    names = dict.fromkeys(name for record in records for name in record)
    versions = {name: list(dict.fromkeys(record.get(name) for record in records)) for name in names}
    return {name: values for name, values in versions.items() if values != [None]}


def commands(runs: RunSet) -> dict[str, Any]:
    """The commands that made the runs, that repeat one run, and that make this page."""
    recorded = list(dict.fromkeys(run.environment["command"] for run in runs.runs if "command" in run.environment))
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--plugin", action="append", default=[])  # a run with a user's own classes needs them
    plugins = parser.parse_known_args([word for command in recorded for word in shlex.split(command)])[0].plugin
    options = [f"--plugin={file}" for file in dict.fromkeys(plugins)]
    return {
        "recorded": recorded,
        "one_run": shlex.join(["pml-nivmf", "run", "config.yaml", *options, "general.run_dir=again"]),
        "page": shlex.join(["pml-nivmf", "report", *map(os.path.relpath, _report_arguments(runs))]),
    }


def as_yaml(config: dict[str, Any]) -> str:
    return str(yaml.safe_dump(config, sort_keys=False, allow_unicode=True))


def described(value: Any) -> str:
    """A setting in a sentence. {ClassName: {argument: value}} becomes ClassName (argument: value)."""
    if not isinstance(value, dict):
        return "–" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if not _is_object(value):
        return f"{{{_listed(value)}}}"
    ((name, arguments),) = value.items()
    return f"{name} ({_listed(arguments)})" if arguments else str(name)


def differing(configs: Sequence[Any], ignore: Sequence[str] = NOT_SETTINGS, path: str = "") -> dict[str, list[Any]]:
    """The values in which configurations differ, by dotted key; a missing value is None.

    Objects {ClassName: arguments} of different classes are one difference, not one for each argument.
    """
    if path in ignore or all(config == configs[0] for config in configs):
        return {}
    names = dict.fromkeys(name for config in configs if isinstance(config, dict) for name in config)
    if not all(isinstance(config, dict) for config in configs) or (all(map(_is_object, configs)) and len(names) > 1):
        return {path: list(configs)}
    result: dict[str, list[Any]] = {}
    for name in names:
        result |= differing([config.get(name) for config in configs], ignore, f"{path}.{name}".lstrip("."))
    return result


def _is_object(value: Any) -> bool:
    """Whether a setting is {ClassName: arguments}."""
    return len(value) == 1 and all(arguments is None or isinstance(arguments, dict) for arguments in value.values())


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{key}: {described(value)}" for key, value in values.items())


def _report_arguments(runs: RunSet) -> Iterator[Path]:
    """Folders that give these runs in this order: of a group, if it holds no other runs, otherwise of its runs."""
    for group in runs.groups:
        folder, shown = runs.folder / group.name, [run.folder for run in group.runs]
        yield from [folder] if run_folders_in(folder) == shown else shown
