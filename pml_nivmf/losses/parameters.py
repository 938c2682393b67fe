"""The parameters of a proxy loss: concentrations, groups for an optimizer, and the state of parameters on all ranks."""

import math
from typing import Any

import torch
from pytorch_metric_learning.losses import BaseMetricLossFunction
from pytorch_metric_learning.regularizers import BaseRegularizer
from torch import Tensor, nn
from torch.nn import functional as F

from ..checks import check_option, check_positive, check_range
from ..distances import NivMFReferenceDistance, NormCarryingDistance
from .collectives import gather_uneven

# softplus(18) is 18 in float32.
_IDENTITY_FROM = 18.0


# PML finds the sub-loss "concentration_reg_loss" by the name of this class.
class ConcentrationRegularizerMixin(BaseMetricLossFunction):
    """log κ (+ log_concentration_deviation), with the penalty λ·regularizer(δ) on deviations δ."""

    def __init__(
        self,
        parametrization: str = "log",
        concentration: str = "per_class",
        concentration_regularizer: BaseRegularizer | None = None,
        concentration_reg_weight: float = 1.0,
        **kwargs: Any,
    ):
        self.parametrization = check_option("parametrization", parametrization, ("log", "softplus"))
        self._starts: dict[str, float] = {}
        kinds = ("per_class", "shared", "shared_plus_deviation")
        self.concentration_kind = check_option("concentration", concentration, kinds)
        deviates = concentration == "shared_plus_deviation"
        if concentration_regularizer is not None and not deviates:
            raise ValueError(f"concentration_regularizer needs shared_plus_deviation, got {concentration!r}")
        # PML's constructor asks for names of sub-losses before modules can be set: a flag stands in, as in PML.
        self.concentration_regularizer: Any = deviates
        super().__init__(**kwargs)
        self.concentration_regularizer = concentration_regularizer or deviates
        self.concentration_reg_weight = check_range("concentration_reg_weight", concentration_reg_weight)

    @property
    def concentration(self) -> Tensor | None:
        """κ of every class of this process, (classes, M) or (classes, 1), or None if the distance normalises."""
        proxies, *rows = self.class_parameters().values()
        logarithm = self._log_concentration_of(*rows)
        return None if logarithm is None else torch.exp(logarithm).expand(len(proxies), -1)

    def regularization_loss_names(self) -> list[str]:
        return ["concentration_reg_loss"]

    def add_concentration_regularization_to_loss_dict(self, loss_dict: dict[str, dict[str, Any]]) -> None:
        if self.concentration_regularizer:
            deviation, regularizer = self.log_concentration_deviation, self.concentration_regularizer
            penalty = deviation.square().mean() if regularizer is True else regularizer(deviation)
            entry = {"losses": penalty * self.concentration_reg_weight, "reduction_type": "already_reduced"}
            loss_dict["concentration_reg_loss"] = entry | {"indices": None}

    def _set_concentrations(self, initial: float | None) -> None:
        self.register_parameter(f"{self.parametrization}_concentration", None)
        self.log_concentration_deviation: Any = None
        if self.distance.normalize_embeddings:
            if initial is not None or self.concentration_regularizer:
                raise ValueError(f"{type(self.distance).__name__} normalises the proxies: they have no concentration")
            return
        start = self._starting_concentration() if initial is None else check_positive("initial_concentration", initial)
        rows = len(self.proxies) if self.concentration_kind == "per_class" else 1
        width = self.embedding_size if isinstance(self.distance, NivMFReferenceDistance) else 1
        self._add_positive("concentration", start, rows, width)
        if self.concentration_regularizer:
            self.log_concentration_deviation = nn.Parameter(torch.zeros(len(self.proxies), width))

    def _add_positive(self, name: str, start: float, *shape: int) -> nn.Parameter:
        """The parameter log_NAME or softplus_NAME of a positive value v, which starts at v = `start`."""
        self._starts[name] = start
        parameter = nn.Parameter(torch.full(shape, math.log(start) if self.parametrization == "log" else start))
        setattr(self, f"{self.parametrization}_{name}", parameter)
        return parameter

    def _log_of(self, name: str, parameter: Tensor) -> Tensor:
        """log v of a parameter p: p itself, or v = softplus(βp)/β with β = 18/start, so v = p unless v is small."""
        if self.parametrization == "log":
            return parameter
        steepness = _IDENTITY_FROM / self._starts[name]
        scaled = steepness * parameter
        low = scaled < -15  # where softplus is the exponential function, which underflows
        return torch.where(low, scaled, torch.log(F.softplus(scaled.masked_fill(low, 0.0)))) - math.log(steepness)

    def _starting_concentration(self) -> float:
        """κ₀ with κ₀·slope/t = s, the cosine scale; for L2, ‖ν_z − ν_p‖² = 2n²(1 − cos) for equal norms n, √(s·t/2)."""
        if not isinstance(self.distance, NormCarryingDistance):
            return math.sqrt(self.cosine_scale / 2 * self.initial_temperature)
        norm = torch.tensor(self.initial_norm_per_dim * self.embedding_size)
        slope = float(self.distance.slope_per_unit(norm, self.embedding_size))
        return self.cosine_scale * self.initial_temperature / slope

    def class_parameters(self) -> dict[str, nn.Parameter]:
        """The parameters with one row per class: the proxies and, if there are any, concentrations or deviations."""
        shared = self.concentration_kind != "per_class"
        name = "log_concentration_deviation" if shared else f"{self.parametrization}_concentration"
        rows = getattr(self, name)
        return {"proxies": self.proxies} | ({} if rows is None else {name: rows})

    def _log_concentration_of(self, rows: Tensor | None = None) -> Tensor | None:
        """log κ of some classes from their rows of `class_parameters`; one row that broadcasts if shared."""
        if self.concentration_kind == "per_class":
            return None if rows is None else self._log_of("concentration", rows)
        shared = getattr(self, f"{self.parametrization}_concentration")
        if shared is None:
            return None
        logarithm = self._log_of("concentration", shared)
        return logarithm if rows is None else logarithm.to(rows.dtype) + rows

    def param_groups(
        self,
        lr: float,
        proxy_lr: float | None = None,
        concentration_lr: float | None = None,
        temperature_lr: float | None = None,
        weight_decay: float = 0.0,
    ) -> list[dict[str, Any]]:
        """Parameter groups for an optimizer, where `lr` is the learning rate of the model.

        Defaults: `proxy_lr` 100·lr, because a proxy sees few images; others lr. `weight_decay` is that of the proxies,
        whatever the optimizer's; concentrations and temperature have none. "sparse" marks groups with sparse gradients,
        for torch.optim.SparseAdam.
        """
        rates = {"proxies": 100 * lr if proxy_lr is None else proxy_lr, "log_concentration_deviation": concentration_lr}
        for name, rate in (("concentration", concentration_lr), ("temperature", temperature_lr)):
            rates[f"{self.parametrization}_{name}"] = rate
        sparse = self.class_parameters() if self.softmax.sparse else {}
        groups = []
        for name, parameter in self.named_parameters():
            rate = rates.get(name)
            group = {"params": [parameter], "name": name, "lr": lr if rate is None else rate, "sparse": name in sparse}
            groups.append(group | {"weight_decay": weight_decay if name == "proxies" else 0.0})
        return groups


def whole_state_dict(loss: ConcentrationRegularizerMixin) -> dict[str, Tensor]:
    """The state_dict with the classes of all ranks, joined on the CPU. Any number of ranks can load it.

    All ranks must call it. The state of an optimizer is not part of it: each rank saves that of its own rows.
    """
    lengths = [len(shard) for shard in loss.softmax.shards(loss.num_classes)]
    state = loss.state_dict()
    return state | {name: torch.cat(gather_uneven(state[name], lengths, "cpu")) for name in loss.class_parameters()}


def load_whole_state_dict(loss: ConcentrationRegularizerMixin, state: dict[str, Tensor]) -> None:
    """Load the rows of this rank from what `whole_state_dict` returned, or from the state of a loss without shards."""
    own = loss.softmax.own_classes(loss.num_classes)
    loss.load_state_dict(state | {name: state[name][own.start : own.stop] for name in loss.class_parameters()})
