"""What a sweep will do: one search a loss, with every space and configuration checked before any training."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from .. import compare
from ..build import check_objects
from ..config import Composed, compose, to_yaml
from ..config_files import find_experiment, parse_yaml
from ..errors import ConfigError
from . import section
from .section import Settings
from .space import Space, combinations, corners, override

HARDWARE = ("general.run_dir", "general.threads", "general.device", "general.num_workers")


@dataclass(frozen=True)
class LossPlan:
    """What is searched for one loss."""

    loss: str  # variant, or a file's path
    base: Composed
    overrides: list[str]
    space: Space
    fixed: dict[int, dict[str, Any]]  # parameters of trials that are known beforehand: a grid's, or the first
    count: int

    @property
    def name(self) -> str:
        return Path(self.loss).stem

    @property
    def study(self) -> str:
        return f"{self.base.name}/{self.name}"

    @property
    def seed(self) -> int:
        return int(self.base.config.general.seed)

    def values(self, params: dict[str, Any]) -> dict[str, Any]:
        """From what Optuna keeps to what goes into a configuration."""
        return {key: parameter.restored(params[key]) for key, parameter in self.space.items()}


@dataclass(frozen=True)
class Plan:
    """A whole sweep."""

    experiment: str  # name or path
    name: str
    settings: Settings
    losses: list[LossPlan]

    @property
    def select(self) -> str:
        return str(self.losses[0].base.config.evaluation.select)

    def configure(self, loss: LossPlan, values: dict[str, Any], seed: int, folder: Path) -> DictConfig:
        """One run's configuration."""
        settings = [override(key, value) for key, value in values.items()]
        place = [override("general.seed", seed), override("general.run_dir", str(folder))]
        return compose(self.experiment, [*loss.overrides, *settings, *place]).config

    def identity(self, loss: LossPlan) -> dict[str, Any]:
        """What makes trials comparable; the number of trials and the hardware may change."""
        config = parse_yaml(to_yaml(loss.base.config))
        for key in HARDWARE:
            group, _, name = key.partition(".")
            config[group].pop(name)
        if not config["evaluation"]["closed_set_share"]:  # sweeps that were begun before there was one go on
            config["evaluation"].pop("closed_set_share")
        search = {key: str(parameter) for key, parameter in loss.space.items()}
        return {"sweep.space": search, "sweep.seeds": self.settings.seeds} | config


def make_plan(experiment: str, losses: Sequence[str], overrides: Sequence[str], trials: int | None = None) -> Plan:
    """The sweep of an experiment; `losses` and `trials` come before what its file says."""
    first = compose(experiment, overrides)
    source = str(find_experiment(experiment))
    if first.sweep is None:
        raise ConfigError(f"{source} has no sweep section: add one with a space to search")
    settings = section.read_settings(first.sweep, source)
    if trials is not None and settings.sampler == "grid":
        raise ConfigError("--trials: a grid runs every combination, so leave it out")
    names = list(losses) or first.compare or [first.loss_variant]
    section.check_names(first.sweep, names, source)
    compare.check_effect(names, overrides)
    plans = [_plan_loss(experiment, loss, overrides, settings, trials, source) for loss in names]
    if len({plan.name for plan in plans}) < len(plans):
        raise ConfigError(f"two losses go by one name: {', '.join(plan.name for plan in plans)}")
    return Plan(experiment, first.name, settings, plans)


def _plan_loss(
    experiment: str, loss: str, overrides: Sequence[str], settings: Settings, trials: int | None, source: str
) -> LossPlan:
    own = [*(text for text in overrides if compare.concerns(text, loss)), f"loss={loss}"]
    base = compose(experiment, own)
    check_objects(base)
    compare.check_class(base, loss)
    space = section.space_of(base.sweep, loss, source)
    _check_free(own, space)
    for values in corners(space):
        _check_corner(experiment, own, values, loss, source)
    if settings.sampler == "grid":
        fixed = dict(enumerate(combinations(space)))
        return LossPlan(loss, base, own, space, fixed, len(fixed))
    fixed = {0: section.start_of(base.sweep, loss, space, source)}
    return LossPlan(loss, base, own, space, fixed, settings.trials if trials is None else trials)


def _check_free(overrides: list[str], space: Space) -> None:
    """What the sweep sets cannot be set by the user too: one of the two would be ignored."""
    for text in overrides:
        key = text.partition("=")[0].split("~")[0]
        if key in space or key == "general.run_dir":
            raise ConfigError(f"command line: {key} is set by the sweep: leave it out")


def _check_corner(experiment: str, own: list[str], values: dict[str, Any], loss: str, source: str) -> None:
    try:
        composed = compose(experiment, [*own, *(override(key, value) for key, value in values.items())])
        check_objects(composed)
        compare.check_class(composed, loss)
    except ConfigError as error:  # without these values the configuration was right
        message = str(error).removeprefix("command line: ")
        raise ConfigError(f"{source}: sweep of {Path(loss).stem}: {message}") from None
