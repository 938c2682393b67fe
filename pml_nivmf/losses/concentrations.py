"""Concentrations of class proxies: per class, shared, or shared plus a deviation per class that is drawn to zero."""

import math
from typing import Any

import torch
from pytorch_metric_learning.regularizers import BaseRegularizer
from pytorch_metric_learning.utils import common_functions as c_f
from torch import Tensor, nn

from ..checks import check_option

_LEAST, _MOST = 1e-8, 1e8  # κ enters to the fourth power, in float32
CONCENTRATIONS = ("per_class", "shared", "shared_plus_deviation")


class MeanSquareRegularizer(BaseRegularizer):
    """Mean of the squared entries of each row; with the default reducer, of all entries."""

    def compute_loss(self, x: Tensor) -> dict[str, dict[str, Any]]:
        losses = x.square().mean(dim=1)
        return {"loss": {"losses": losses, "indices": c_f.torch_arange_from_size(x), "reduction_type": "element"}}


class ConcentrationRegularizerMixin:
    r"""The concentrations' parameters and their penalty; PML finds its sub-loss by the name of this class.

    log κ_c is one of

        log_concentration[c]                                  concentration="per_class"
        log_concentration[0]                                  concentration="shared"
        log_concentration[0] + log_concentration_deviation[c] concentration="shared_plus_deviation"

    In the last form all classes learn one shape from all images and leave it only as far as their own images pay the
    penalty λ·regularizer(δ), δ the (C, ·) deviations, which start at zero: few images per class cannot overfit it. The
    penalty is a sub-loss of its own, "concentration_reg_loss", as PML's `weight_regularizer` has.
    """

    log_concentration: nn.Parameter
    log_concentration_deviation: nn.Parameter

    def __init__(
        self,
        concentration: str = "per_class",
        concentration_regularizer: BaseRegularizer | None = None,
        concentration_reg_weight: float = 1.0,
        **kwargs: Any,
    ):
        check_option("concentration", concentration, CONCENTRATIONS)
        deviating = concentration == "shared_plus_deviation"
        if not deviating and concentration_regularizer is not None:
            raise ValueError(
                f'concentration_regularizer needs concentration="shared_plus_deviation", got {concentration!r}'
            )
        if not 0 <= concentration_reg_weight < math.inf:
            raise ValueError(f"concentration_reg_weight must be a number of at least 0, got {concentration_reg_weight}")
        # PML's constructor asks for the sub-losses' names before modules can be set: a flag stands in, as in PML.
        self.concentration_regularizer: Any = deviating
        super().__init__(**kwargs)
        self.concentration_kind = concentration
        self.concentration_regularizer = (concentration_regularizer or MeanSquareRegularizer()) if deviating else None
        self.concentration_reg_weight = float(concentration_reg_weight)
        if deviating:
            self.add_to_recordable_attributes(list_of_names=["concentration_reg_weight"], is_stat=False)  # type: ignore[attr-defined]

    def regularization_loss_names(self) -> list[str]:
        return ["concentration_reg_loss"]

    def add_concentration_regularization_to_loss_dict(self, loss_dict: dict[str, dict[str, Any]]) -> None:
        if self.concentration_regularizer is not None:
            penalty = self.concentration_regularizer(self.log_concentration_deviation) * self.concentration_reg_weight
            loss_dict["concentration_reg_loss"] = {
                "losses": penalty,
                "indices": None,
                "reduction_type": "already_reduced",
            }

    def _set_concentrations(self, start: float, classes: int, width: int) -> None:
        if not _LEAST <= start <= _MOST:
            raise ValueError(f"initial_concentration must lie between {_LEAST} and {_MOST}, got {start}")
        rows = classes if self.concentration_kind == "per_class" else 1
        self.log_concentration = nn.Parameter(torch.full((rows, width), math.log(start)))
        if self.concentration_kind == "shared_plus_deviation":
            self.log_concentration_deviation = nn.Parameter(torch.zeros(classes, width))

    def _concentration_rows(self) -> tuple[Tensor, ...]:
        """The concentrations' parameters that have a row per class, if any."""
        if self.concentration_kind == "shared":
            return ()
        return (self.log_concentration if self.concentration_kind == "per_class" else self.log_concentration_deviation,)

    def _log_concentration_of(self, *rows: Tensor) -> Tensor:
        """log κ from what `_concentration_rows` gave, or from a part of its rows; one row that broadcasts if shared."""
        if self.concentration_kind == "per_class":
            return rows[0]
        return self.log_concentration.to(rows[0].dtype) + rows[0] if rows else self.log_concentration
