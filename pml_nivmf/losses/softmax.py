"""−log softmax over the classes of a loss: which classes are computed, how many at a time, and by which process."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ..checks import check_count
from .collectives import gather, rank, world


@dataclass(frozen=True)
class ClassLogits:
    """Logits as a function of the query and of tensors with one row per class."""

    function: Callable[..., Tensor]  # (query, *rows of some classes) -> (batch, classes)
    rows: tuple[Tensor, ...]  # with one row for each class that this process holds
    shared: tuple[Tensor, ...]  # other parameters that `function` uses and that are trained
    num_classes: int  # of all processes

    def __call__(self, query: Tensor, rows: Sequence[Tensor]) -> Tensor:
        return self.function(query, *(row.to(query.dtype) for row in rows))

    def chunks(self, chunk_size: int | None) -> Iterator[tuple[int, list[Tensor]]]:
        """(number of the first class, rows) of every chunk."""
        size = chunk_size or len(self.rows[0])
        for start in range(0, len(self.rows[0]), size):
            yield start, [row[start : start + size] for row in self.rows]

    def of_all_rows(self, query: Tensor, chunk_size: int | None = None) -> Tensor:
        """(batch, classes of this process)."""
        return torch.cat([self(query, rows) for _, rows in self.chunks(chunk_size)], dim=1)


class Softmax(ABC):
    """How −log softmax over classes is computed. Objects hold options only, so that losses can share them."""

    chunk_size: int | None = None
    sparse: bool = False  # whether the gradients of the rows are sparse
    sharded: ClassVar[bool] = False  # whether each process holds a part of the rows

    def __post_init__(self) -> None:
        for name in ("chunk_size", "n_negatives"):
            if getattr(self, name, None) is not None:
                check_count(name, getattr(self, name))

    @abstractmethod
    def losses(self, logits: ClassLogits, query: Tensor, labels: Tensor, training: bool) -> Tensor:
        """(batch,) −log softmax at the labels."""

    def all_logits(self, logits: ClassLogits, query: Tensor) -> Tensor:
        """(batch, num_classes). If classes are spread, all ranks have to call it with the same number of images."""
        if not self.sharded:
            return logits.of_all_rows(query, self.chunk_size)
        lengths = [len(shard) for shard in self.shards(logits.num_classes)]
        own = _averaged(logits).of_all_rows(gather(query, dim=-2), self.chunk_size)  # (all images, own classes)
        parts = _of_own_images(F.pad(own, (0, max(lengths) - own.shape[1])))
        return torch.cat([part[:, :length] for part, length in zip(parts, lengths, strict=True)], dim=1)

    def shards(self, num_classes: int) -> list[range]:
        """The classes of each process, or all classes if every process holds all."""
        count = world() if self.sharded else 1
        if num_classes < count:
            raise ValueError(f"{num_classes} classes cannot be spread over {count} ranks: use FullSoftmax")
        return [range(num_classes * r // count, num_classes * (r + 1) // count) for r in range(count)]

    def own_classes(self, num_classes: int) -> range:
        return self.shards(num_classes)[rank() if self.sharded else 0]

    @torch.no_grad()
    def create_rows(self, num_classes: int, width: int, init: Callable[[Tensor], Any]) -> Tensor:
        """(own classes, width) filled by `init`. All processes draw all shards: equal seeds make different shards."""
        own = self.own_classes(num_classes)
        rows = torch.empty(len(own), width)
        for shard in self.shards(num_classes):
            init(rows if shard == own else torch.empty(len(shard), width))
        return rows


@dataclass(frozen=True)
class FullSoftmax(Softmax):
    r"""Softmax over all classes: L = log Σ_c exp(logit_c) − logit_label.

    Args:
        chunk_size: number of classes that are computed at a time, and again in the backward. Memory beyond parameters
            and gradients is then that of one chunk. None computes all classes at once, as torch.compile always does.
    """

    chunk_size: int | None = None

    def losses(self, logits: ClassLogits, query: Tensor, labels: Tensor, training: bool) -> Tensor:
        if self.chunk_size is None:
            return F.cross_entropy(logits(query, logits.rows), labels, reduction="none")
        log_sum, target = log_sum_and_target(logits, query, labels, self.chunk_size)
        return log_sum - target


@dataclass(frozen=True)
class SampledSoftmax(Softmax):
    r"""In training, softmax over the classes P of the batch and n of the others, drawn uniformly for every batch:

        L = log(Σ_{c in P} exp(logit_c) + (C − |P|)/n·Σ_{c drawn} exp(logit_c)) − logit_label

    The sum is right on average. Evaluation uses all classes.

    Args:
        n_negatives: n, or all others if there are fewer.
        sparse: whether gradients of proxies and concentrations are sparse, for torch.optim.SparseAdam.
    """

    n_negatives: int
    sparse: bool = False

    def losses(self, logits: ClassLogits, query: Tensor, labels: Tensor, training: bool) -> Tensor:
        if not training:
            return F.cross_entropy(logits(query, logits.rows), labels, reduction="none")
        classes, correction, target = draw_classes(labels, logits.num_classes, self.n_negatives, query.dtype)
        rows = [F.embedding(classes, row, sparse=self.sparse) for row in logits.rows]
        return F.cross_entropy(logits(query, rows) + correction, target, reduction="none")


def draw_classes(labels: Tensor, num_classes: int, n_negatives: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """(classes, (K,); what to add to their logits, (K,); the position of each label among them, (batch,)).

    So that K does not depend on values, there are superfluous classes, whose logits become −∞.
    """
    in_order = labels.sort().values
    first = torch.ones_like(in_order, dtype=torch.bool)
    first[1:] = in_order[1:] != in_order[:-1]
    in_batch = torch.zeros(num_classes, dtype=torch.bool, device=labels.device).scatter_(0, in_order, True)
    # The first n classes of a random order that are not in the batch are among its first n + |batch|.
    drawn = torch.randperm(num_classes, device=labels.device)[: n_negatives + len(labels)]
    others = ~in_batch[drawn]
    negative = others & (others.cumsum(0) <= n_negatives)
    rate = negative.sum().to(dtype) / (num_classes - first.sum())  # NaN if there is no other class: not used then
    log_weight = torch.cat([torch.zeros_like(in_order, dtype=dtype), -torch.log(rate).expand(len(drawn))])
    correction = log_weight.masked_fill(~torch.cat([first, negative]), -torch.inf)
    return torch.cat([in_order, drawn]), correction, torch.searchsorted(in_order, labels)


@dataclass(frozen=True)
class ShardedSoftmax(Softmax):
    r"""Softmax over all classes, spread over the ranks of a distributed training. Rank r of K holds about C/K classes:

        L = log Σ_r exp(s_r) − logit_label,     s_r = log Σ_{c of rank r} exp(logit_c)

    All ranks see all images; they exchange the query and two numbers per image, never proxies. `proxies` and
    concentrations have the rows of this rank only. Wrap the loss in DistributedDataParallel like the model; see
    `whole_state_dict` for checkpoints.

    Args:
        chunk_size: see `FullSoftmax`.
    """

    chunk_size: int | None = None
    sharded: ClassVar[bool] = True

    def losses(self, logits: ClassLogits, query: Tensor, labels: Tensor, training: bool) -> Tensor:
        labels = gather(labels) - self.own_classes(logits.num_classes).start
        terms = log_sum_and_target(_averaged(logits), gather(query, dim=-2), labels, self.chunk_size)
        log_sums, targets = _of_own_images(torch.stack([*terms], dim=1)).unbind(-1)
        return torch.logsumexp(log_sums, dim=0) - targets.sum(0)


def _averaged(logits: ClassLogits) -> ClassLogits:
    """The same logits. The rows' gradients, sums over ranks, become averages, as DDP makes of other gradients."""

    def function(query: Tensor, *rows: Tensor) -> Tensor:
        return logits.function(query, *(row.detach() + (row - row.detach()) / world() for row in rows))

    return replace(logits, function=function)


def _of_own_images(values: Tensor) -> Tensor:
    """(ranks, images of this rank, …): what each rank computed for them, from its values (images of all ranks, …)."""
    return gather(values.unsqueeze(0)).chunk(world(), dim=1)[rank()]


def log_sum_and_target(logits: ClassLogits, query: Tensor, labels: Tensor, chunk_size: int | None) -> Sequence[Tensor]:
    """(log Σ_c exp(logit_c), logit of the label or 0 if it is none of these classes), (batch,), differentiable once."""
    if chunk_size is None or torch.compiler.is_compiling():  # the compiler cannot trace a backward that differentiates
        return _terms(logits, query, labels, logits.rows)
    return _ChunkedTerms.apply(logits, chunk_size, labels, query, *logits.rows, *logits.shared)


def _terms(logits: ClassLogits, query: Tensor, labels: Tensor, rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """`log_sum_and_target` of one chunk, whose first class has label 0."""
    values = logits(query, rows)
    inside = (labels >= 0) & (labels < values.shape[1])
    target = values.gather(1, labels.clamp(0, values.shape[1] - 1).unsqueeze(1)).squeeze(1)
    return torch.logsumexp(values, dim=1), target.masked_fill(~inside, 0.0)


class _ChunkedTerms(torch.autograd.Function):
    """Computes each chunk again in the backward. Unlike checkpoints, it never holds the gradients of the rows twice."""

    @staticmethod
    def forward(ctx: Any, logits: ClassLogits, chunk_size: int, labels: Tensor, query: Tensor, *tensors: Tensor) -> Any:
        log_sum, target = query.new_full(labels.shape, -torch.inf), query.new_zeros(labels.shape)
        for start, rows in logits.chunks(chunk_size):
            chunk_sum, chunk_target = _terms(logits, query, labels - start, rows)
            log_sum, target = torch.logaddexp(log_sum, chunk_sum), target + chunk_target
        ctx.logits, ctx.chunk_size = logits, chunk_size
        ctx.save_for_backward(labels, log_sum, query, *tensors)  # checks that nothing was changed in between
        return log_sum, target

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_sum: Tensor, grad_target: Tensor) -> tuple[Tensor | None, ...]:
        labels, log_sum, query, *tensors = ctx.saved_tensors
        totals = [torch.zeros_like(tensor) for tensor in (query, *tensors)]
        of_rows = range(1, 1 + len(ctx.logits.rows))
        for start, rows in ctx.logits.chunks(ctx.chunk_size):
            with torch.autocast(query.device.type, enabled=False), torch.enable_grad():
                leaves = [tensor.detach().requires_grad_() for tensor in (query, *rows)]
                terms = _terms(ctx.logits, leaves[0], labels - start, leaves[1:])
                weights = grad_sum * torch.exp(terms[0].detach() - log_sum), grad_target
                inputs = [*leaves, *ctx.logits.shared]
                gradients = torch.autograd.grad(terms, inputs, weights, materialize_grads=True)
            for number, (total, gradient) in enumerate(zip(totals, gradients, strict=True)):
                (total[start : start + len(gradient)] if number in of_rows else total).add_(gradient)
        return None, None, None, *totals
