"""What several commands share: plugins, names of losses, and what torchrun must not start."""

import argparse
from typing import TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_plugin(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--plugin", action="append", default=[], metavar="FILE.py", help='a file that calls register("loss", MyLoss)'
    )


def loss_names(text: str | None) -> list[str]:
    """What `--losses a,b` names; none where it was not given."""
    names = [] if text is None else [name.strip() for name in text.split(",")]
    if "" in names:
        raise ValueError(f"--losses {text!r} holds an empty name: give loss variants as in el_nivmf,proxy_anchor")
    return names


def refuse_torchrun(command: str) -> None:
    """For commands of which torchrun would start several that know nothing of each other."""
    from ..experiments import distributed

    if distributed.is_launched():
        raise ValueError(f"`{command}` starts its own processes: leave torchrun out, it is for `run`")


def load_plugins(options: argparse.Namespace) -> None:
    from ..experiments import registry

    for plugin in options.plugin:
        registry.load_plugin(plugin)
