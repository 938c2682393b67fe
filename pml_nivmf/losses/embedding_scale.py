r"""Where embeddings start on the concentration axis.

A fresh Linear head gives norms of about √(M/3), but a von Mises-Fisher in M dimensions with κ ≪ M is nearly uniform:
its mean cosine is A ≈ 2c/(1 + √(1+4c²)) with c = κ/M, 0.10 at c = 0.1 and 0.88 at c = 4. Losses that carry the norm
therefore multiply embeddings by one constant, set once so that the mean concentration starts at c = 4, and never
changed afterwards: what the network learns is the norm relative to that.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import check_positive

CONCENTRATION_PER_DIMENSION = 4.0


def starting_norm(dim: int, per_dim: float = CONCENTRATION_PER_DIMENSION) -> float:
    """The mean concentration κ_z that embeddings of M = `dim` dimensions should start with: 4·M by default."""
    return per_dim * dim


class EmbeddingScaleMixin(ABC):
    """The factor on a loss's embeddings: a buffer, fixed or set by the first batch that the loss sees in training."""

    embedding_scale: Tensor
    embedding_scale_is_set: Tensor
    # of the nn.Module that this is mixed into
    register_buffer: Callable[..., None]
    register_load_state_dict_post_hook: Callable[..., Any]

    @abstractmethod
    def _starting_norm(self) -> float | None:
        """The mean norm that embeddings should start with, or None if their norms do not matter."""

    def _set_embedding_scale(self, embedding_scale: float | str) -> None:
        automatic = embedding_scale == "auto"
        number = 1.0 if automatic else check_positive('embedding_scale (a number or "auto")', embedding_scale)  # type: ignore[arg-type]
        self.automatic_scale = automatic and self._starting_norm() is not None
        self.register_buffer("embedding_scale", torch.tensor(number))
        self.register_buffer("embedding_scale_is_set", torch.tensor(not self.automatic_scale))
        # The buffer's value on the host, None until it is set: asking a GPU every step would stall it.
        self._host_scale = None if self.automatic_scale else number
        self._norms_seen = False
        self.register_load_state_dict_post_hook(EmbeddingScaleMixin._after_loading)

    def _after_loading(self, _incompatible_keys: Any) -> None:
        """A loaded scale that was set is taken; one that was not leaves a fixed scale as it was built."""
        if bool(self.embedding_scale_is_set):
            self._host_scale = self.embedding_scale.item()
        elif self.automatic_scale:
            self._host_scale = None
        else:
            assert self._host_scale is not None
            self._set_scale(torch.tensor(self._host_scale))

    def _set_scale(self, scale: Tensor) -> None:
        with torch.no_grad():
            self.embedding_scale.copy_(scale)
            self.embedding_scale_is_set.fill_(True)
        self._host_scale = self.embedding_scale.item()

    def _scaled(self, embeddings: Tensor) -> Tensor:
        return embeddings * self._current_scale(embeddings).to(embeddings.dtype)

    def _current_scale(self, embeddings: Tensor) -> Tensor:
        if self._host_scale is not None:
            return self.embedding_scale
        # Not calibrated yet, and evaluating must not calibrate: this batch's own scale.
        own = self._scale_for(torch.linalg.vector_norm(embeddings.detach(), dim=1).mean())
        return torch.where(self.embedding_scale_is_set, self.embedding_scale.to(own.dtype), own)

    def _look_at_norms(self, embeddings: Tensor, recalibrate: bool = False) -> None:
        """On the first batch, warn about normalised embeddings; set the scale if it is to be set and is not yet."""
        if torch.compiler.is_compiling() and not _is_distributed():
            return self._calibrate_in_a_graph(embeddings)
        if self._host_scale is None and bool(self.embedding_scale_is_set):  # a compiled step has set it
            self._host_scale = self.embedding_scale.item()
        wanted = self.automatic_scale and (recalibrate or self._host_scale is None)
        if self._starting_norm() is None or (self._norms_seen and not wanted):
            return
        norms = torch.linalg.vector_norm(embeddings.detach(), dim=1)
        if not self._norms_seen and bool(((norms - 1).abs() < 1e-2).all()):
            warnings.warn(
                "all embeddings have length one, but this loss uses the norm: pass them as they come", stacklevel=1
            )
        self._norms_seen = True
        if wanted:
            mean_norm = _mean_over_ranks(norms)
            if mean_norm > 0:
                self._set_scale(self._scale_for(mean_norm))

    def _calibrate_in_a_graph(self, embeddings: Tensor) -> None:
        """The first batch sets the scale also where nothing can be asked of the host."""
        if self._host_scale is None:
            mean_norm = torch.linalg.vector_norm(embeddings.detach(), dim=1).mean()
            self.embedding_scale.copy_(self._current_scale(embeddings))
            self.embedding_scale_is_set.logical_or_(mean_norm > 0)

    def _scale_for(self, mean_norm: Tensor) -> Tensor:
        """The factor that brings a mean norm to the starting norm; 1 if all norms are zero."""
        target = self._starting_norm()
        assert target is not None
        return torch.where(mean_norm > 0, target / mean_norm.clamp(min=torch.finfo(mean_norm.dtype).tiny), 1.0)


def _mean_over_ranks(norms: Tensor) -> Tensor:
    """The mean over the batches of all processes of a distributed training, which must share one scale."""
    total = torch.stack([norms.sum(), norms.new_tensor(len(norms))])
    if _is_distributed():
        torch.distributed.all_reduce(total)
    return total[0] / total[1]


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


@torch.no_grad()
def calibrate_head(head: nn.Linear, features: Tensor, target_norm: float | None = None) -> float:
    """Scale a Linear head, in place, so that its outputs for `features` have mean norm `target_norm` (default 4·M).

    An alternative to a loss's `embedding_scale="auto"` for models whose raw norms should be concentrations at
    inference; use it with `embedding_scale=1.0`. Scaling weights by s makes a given learning rate s times slower.

    Returns the factor.
    """
    target = starting_norm(head.out_features) if target_norm is None else target_norm
    if not target > 0:
        raise ValueError(f"target_norm must be positive, got {target}")
    mean_norm = float(torch.linalg.vector_norm(head(features), dim=-1).mean())
    if not 0 < mean_norm < float("inf"):
        raise ValueError(f"the head's outputs have mean norm {mean_norm}: it cannot be scaled to {target}")
    factor = target / mean_norm
    head.weight.mul_(factor)
    if head.bias is not None:
        head.bias.mul_(factor)
    return factor
