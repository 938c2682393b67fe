"""From a YAML file to a trained, tested and recorded run: config → build → run, and compare, sweeps, benchmarks."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .load import load_run

__all__ = ["load_run"]


def __getattr__(name: str) -> Any:
    if name != "load_run":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .load import load_run  # imports torchvision and timm, which some commands do not need

    return load_run
