"""The base of all distances: they use the norms of embeddings, with one formula for all pairs and matched rows."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from pytorch_metric_learning.distances import BaseDistance
from torch import Tensor

from ..functional.finite import check_squarable
from ..functional.pairing import CROSS, ROWWISE, Pairing, at_least_float32

_FIXED_OPTIONS = {"normalize_embeddings": False, "p": 2, "power": 1, "is_inverted": False}
# ‖z + p‖² and its like must not overflow either: float32 takes norms up to 1e16.
_HEADROOM = 1024.0


class NormCarryingDistance(BaseDistance, ABC):
    """A PML distance between von Mises-Fisher distributions: an embedding z has direction z/‖z‖ and concentration ‖z‖.

    Lower is closer; values may be negative. Half precision is computed in float32, with autocast off. NaN, infinity and
    norms too large to be squared raise ValueError. To add a distance, implement the abstract methods.
    """

    packed_references = False  # whether references of twice the width, from `pack_nivmf`, are understood

    def __init__(self, **kwargs: Any):
        for name, value in _FIXED_OPTIONS.items():
            if kwargs.setdefault(name, value) != value:
                raise ValueError(f"{type(self).__name__} needs {name}={value}, got {kwargs[name]}: it uses the norm")
        super().__init__(**kwargs)

    @abstractmethod
    def relative(self, query: Tensor, reference: Tensor, pairing: Pairing, whole: bool = True) -> Tensor:
        """The distance without `offset`, in float32 or float64.

        `whole=False` may leave out what is the same for every reference of a query, for a precise softmax over
        references.
        """

    @abstractmethod
    def offset(self, dim: int) -> float:
        """The part of the distance that is the same for every pair, in M = `dim` dimensions."""

    @abstractmethod
    def slope_per_unit(self, query_concentration: Tensor, dim: int) -> Tensor:
        """How fast the distance falls with the cosine, divided by the reference's concentration, where that is small.

        A softmax over −distance/t then starts with a cosine scale of concentration·slope/t.
        """

    def compute_mat(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        return self._compare(query_emb, ref_emb, CROSS)

    def pairwise_distance(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        self.check_shapes(query_emb, ref_emb)
        return self._compare(query_emb, ref_emb, ROWWISE)

    def check_shapes(self, query_emb: Tensor, ref_emb: Tensor | None) -> None:
        super().check_shapes(query_emb, ref_emb)
        width = query_emb.shape[1]
        allowed = (width, 2 * width) if self.packed_references else (width,)
        if ref_emb is not None and ref_emb.shape[1] not in allowed:
            expected = " or ".join(map(str, allowed))
            raise ValueError(f"queries have width {width}, so references must have {expected}, got {ref_emb.shape[1]}")

    def _compare(self, query: Tensor, reference: Tensor, pairing: Pairing) -> Tensor:
        with torch.autocast(query.device.type, enabled=False):
            dtype = torch.promote_types(at_least_float32(query).dtype, at_least_float32(reference).dtype)
            query, reference = query.to(dtype), reference.to(dtype)
            check_squarable("queries", query, _HEADROOM)
            check_squarable("references", reference, _HEADROOM)
            return self.relative(query, reference, pairing) + self.offset(query.shape[1])
