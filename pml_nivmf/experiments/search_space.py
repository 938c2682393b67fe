"""The `sweep` section of an experiment: how to search, and which values each loss may take."""

import json
import math
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from optuna.trial import BaseTrial, FixedTrial

from ..checks import nearest
from . import compare, registry
from .config import ConfigError, compose, find_variant, loss_class
from .folders import experiment_name

_GRID_DEFAULTS = {"pruner": "none", "trials": sys.maxsize}  # the number of combinations is the limit


@dataclass
class SweepSection:
    """The section; OmegaConf checks types and names."""

    sampler: Literal["tpe", "grid"] = "tpe"  # a grid runs every combination of `choice` parameters
    trials: int = 20  # per loss
    seeds: int = 1  # runs per trial; the median of their validation scores counts
    finalists: int = 1  # the best trials of each loss, which run with more seeds before one of them is chosen
    finalist_seeds: int = 0  # how many more; the mean over all seeds chooses
    pruner: Literal["median", "none"] = "median"
    # {key: {choice|log_uniform|uniform|int: values}} for all losses; `loss.ClassName.…` for losses of that class
    space: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    # for one loss: more parameters, other ranges, or null to leave a parameter out
    losses: dict[str, dict[str, dict[str, list[Any]] | None]] = field(default_factory=dict)
    start: dict[str, Any] = field(default_factory=dict)  # the first trial; other parameters are drawn
    reproduce: dict[str, Any] = field(default_factory=dict)  # {key: value} for the runs of --reproduce-best only


class Parameter(NamedTuple):
    """The options of a choice as JSON, because Optuna cannot store mappings, or both ends of a range."""

    kind: str
    values: list[Any]

    def suggest(self, trial: BaseTrial, key: str) -> Any:
        """Let Optuna choose a value."""
        if self.kind == "choice":
            return trial.suggest_categorical(key, self.values)
        if self.kind == "int":
            return trial.suggest_int(key, *self.values)
        return trial.suggest_float(key, *self.values, log=self.kind == "log_uniform")


@dataclass(frozen=True)
class LossSearch:
    """The search for the best settings of one loss."""

    experiment: str  # name or path
    loss: str  # variant, or path of a file
    overrides: list[str]
    base: DictConfig  # without any parameter of a trial
    section: SweepSection
    space: dict[str, Parameter]  # by dotted key

    @property
    def name(self) -> str:
        return Path(self.loss).stem

    @property
    def study(self) -> str:
        return f"{experiment_name(self.experiment)}/{self.name}"

    @property
    def trials(self) -> int:
        is_grid, limit = self.section.sampler == "grid", self.section.trials
        return min(limit, math.prod(len(parameter.values) for parameter in self.space.values())) if is_grid else limit

    @property
    def start(self) -> dict[str, Any]:
        """The parameters of the first trial; those that are missing are drawn."""
        start = {key: value for key, value in self.section.start.items() if key in self.space}
        return {key: json.dumps(value) if self.space[key].kind == "choice" else value for key, value in start.items()}

    def seeds(self) -> range:
        """The seeds of each trial."""
        return range(self.base.general.seed, self.base.general.seed + self.section.seeds)

    def job(self, folder: Path, trial: int | str, params: dict[str, Any], seed: int) -> compare.Job:
        """One run with the parameters of a trial."""
        name = trial if isinstance(trial, str) else f"trial-{trial:04d}"
        target = folder / self.name / name / f"seed-{seed}"
        overrides = [*self.overrides, *(f"{key}={value}" for key, value in params.items())]
        return compare.Job(self.name, compare.compose_loss(self.experiment, self.loss, overrides, seed, target), target)


def decode(params: dict[str, Any]) -> dict[str, Any]:
    """The values that Optuna stores as numbers and JSON."""
    return {key: json.loads(str(value)) for key, value in params.items()}


def plan(
    experiment: str, losses: Sequence[str], overrides: Sequence[str], trials: int | None = None
) -> list[LossSearch]:
    """One search per loss, every space checked; `losses` and `trials` replace those of the experiment's file."""
    first = compose(experiment, overrides)
    chosen = compare.overrides_of_losses(first, losses, overrides)
    section = _read_section(first.sweep)
    section.trials = trials or section.trials
    for name in section.losses.keys() - {Path(loss).stem for loss in chosen}:
        find_variant("loss", str(name))
    searches = []
    for loss, texts in chosen.items():
        in_place = compose(experiment, [*texts, f"loss={loss}"]).searches
        space = _read_space(section, in_place, loss)
        values = [f"{key}={space[key].values[0]}" for key in in_place]
        base = compare.compose_loss(experiment, loss, [*texts, *values], first.config.general.seed, Path())
        searches.append(LossSearch(experiment, loss, texts, base, section, space))
        _check(searches[-1])
    searched = {*section.space}.union(*section.losses.values(), *(search.space for search in searches))
    for key in section.start.keys() - searched:
        raise ConfigError(f"sweep.start: {key!r} is not searched{nearest(key, searched)}")
    return searches


def _read_section(section: Any) -> SweepSection:
    section = {} if section is None else section
    if isinstance(section, dict) and section.get("sampler") == "grid":
        section = _GRID_DEFAULTS | section
    try:
        config: Any = OmegaConf.merge({"sweep": OmegaConf.structured(SweepSection)}, {"sweep": section})
    except OmegaConfBaseException as error:
        raise ConfigError(f"{error.full_key or 'sweep'}: {str(error).splitlines()[0]}") from None
    result: SweepSection = OmegaConf.to_object(config.sweep)  # type: ignore[assignment]
    if result.start and result.sampler == "grid":
        raise ConfigError("sweep.start: a grid runs every combination: leave start out")
    return result


def _read_space(section: SweepSection, in_place: dict[str, Any], loss: str) -> dict[str, Parameter]:
    """The parameters of one loss: the common ones that concern it, those under `losses`, and those of key~SEARCH~."""
    targets = {key: compare.target_class(key, registry.known("loss"), "sweep.space") for key in section.space}
    common = {key: entry for key, entry in section.space.items() if targets[key] in (None, loss_class(loss))}
    changes = section.losses.get(Path(loss).stem, {})
    for key in changes:
        compare.target_class(key, [loss_class(loss)], f"sweep.losses.{Path(loss).stem}")
    kinds = ("choice",) if section.sampler == "grid" else ("choice", "log_uniform", "uniform", "int")
    space = {}
    for key, entry in ((key, entry) for key, entry in (common | changes | in_place).items() if entry is not None):
        kind, values = next(iter(entry.items()), ("", [])) if isinstance(entry, dict) else ("", [])
        if not values or len(entry) != 1 or kind not in kinds:
            raise ConfigError(f"sweep: {key}: expected {{KIND: […]}}, got {entry}{nearest(kind, kinds)}")
        space[key] = Parameter(kind, list(map(json.dumps, values)) if kind == "choice" else values)
    return space


def _check(search: LossSearch) -> None:
    """Let Optuna check all ranges and the start, and compose every option and both ends of every range."""
    where = f"sweep of {search.name}"
    if not search.space:
        raise ConfigError(f"{where}: there is no parameter: add some under space or losses, or a key~SEARCH~")
    if search.base.evaluation.select_on != "validation":
        remedy = "search with validation, and set this under sweep.reproduce"
        raise ConfigError(f"{where}: evaluation.select_on is {search.base.evaluation.select_on}: {remedy}")
    for key in {text.partition("=")[0] for text in search.overrides} & search.space.keys():
        raise ConfigError(f"{key} is set by the sweep: leave it out")
    values = {key: parameter.values for key, parameter in search.space.items()}
    rows = range(max(map(len, values.values())))
    corners = [{key: options[min(row, len(options) - 1)] for key, options in values.items()} for row in rows]
    for params in [*corners, corners[0] | search.start]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", UserWarning)  # Optuna only warns of a value outside its range
                drawn = {key: p.suggest(FixedTrial(params), key) for key, p in search.space.items()}
                search.job(Path(), 0, drawn | search.section.reproduce, 0)
        except (TypeError, ValueError, UserWarning) as error:  # without the parameters the configuration was right
            raise ConfigError(f"{where}: {error} (with {params})") from None


def describe(search: LossSearch) -> str:
    """The study, the number of runs and the space, which `--dry-run` prints."""
    runs = f"{search.trials} trials, {search.trials * search.section.seeds} runs"
    space = [f"  {key:<48} {parameter.kind} {parameter.values}" for key, parameter in search.space.items()]
    return "\n".join([f"{search.study}: {search.section.sampler}, {runs}", *space])
