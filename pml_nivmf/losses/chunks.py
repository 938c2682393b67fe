"""Log-softmax over classes in chunks: what lives beyond parameters and their gradients is one chunk of classes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

LogitsOf = Callable[..., Tensor]


@dataclass(frozen=True)
class ChunkedLogits:
    """How to compute logits (batch, classes) of some classes, and which classes there are.

    Args:
        logits_of: (query, *rows) -> (batch, classes).
        rows: tensors with one row per class, whole.
        offset: (classes,) to be added to the logits, or None.
        chunk_size: classes computed at a time.
        shared: other leaf tensors that `logits_of` may use and that get gradients.
    """

    logits_of: LogitsOf
    rows: tuple[Tensor, ...]
    offset: Tensor | None
    chunk_size: int
    shared: tuple[Tensor, ...] = ()

    def is_whole(self) -> bool:
        return self.chunk_size >= len(self.rows[0])

    def starts(self) -> range:
        return range(0, len(self.rows[0]), self.chunk_size)

    def chunk(self, start: int) -> tuple[Tensor, ...]:
        return tuple(row[start : start + self.chunk_size] for row in self.rows)

    def logits(self, query: Tensor, start: int, rows: Sequence[Tensor]) -> Tensor:
        """Logits of the chunk that begins at class `start`; its rows are cast here, a chunk at a time."""
        logits = self.logits_of(query, *(row.to(query.dtype) for row in rows))
        return logits if self.offset is None else logits + self.offset[start : start + self.chunk_size]

    def all_logits(self, query: Tensor) -> Tensor:
        """(batch, classes), with no more than one chunk's intermediate results alive."""
        if self.is_whole():
            return self.logits(query, 0, self.rows)
        chunks = zip(self.starts(), *(row.split(self.chunk_size) for row in self.rows), strict=True)
        parts = [checkpoint(self.logits, query, start, rows, use_reentrant=False) for start, *rows in chunks]
        return torch.cat(parts, dim=1)

    def log_sum_and_target(self, query: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """(log Σ_c exp(logits), the label's logit, 0 if it is none of these classes'), both (batch,), differentiable
        once."""
        if self.is_whole():
            return self._terms(query, labels, 0, self.rows)
        if torch.compiler.is_compiling():  # the compiler cannot look into a backward that differentiates
            return self._log_sum_and_target_by_checkpoints(query, labels)
        log_sum, target = _LogSumAndTarget.apply(self, labels, query, *self.rows, *self.shared)
        return log_sum, target

    def _log_sum_and_target_by_checkpoints(self, query: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        chunks = zip(self.starts(), *(row.split(self.chunk_size) for row in self.rows), strict=True)
        terms = [checkpoint(self._terms, query, labels, start, rows, use_reentrant=False) for start, *rows in chunks]
        log_sums, targets = (torch.stack(values) for values in zip(*terms, strict=True))
        return torch.logsumexp(log_sums, dim=0), targets.sum(0)

    def _terms(self, query: Tensor, labels: Tensor, start: int, rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """(log Σ exp of a chunk's logits, the label's logit where the chunk holds it and 0 elsewhere)."""
        logits = self.logits(query, start, rows)
        inside, column = _place(labels, start, logits.shape[1])
        return torch.logsumexp(logits, dim=1), logits.gather(1, column).squeeze(1).masked_fill(~inside, 0.0)


def _place(labels: Tensor, start: int, count: int) -> tuple[Tensor, Tensor]:
    """Whether each label lies in a chunk, (batch,), and its column there or any other, (batch, 1)."""
    local = labels - start
    return (local >= 0) & (local < count), local.clamp(0, count - 1).unsqueeze(1)


class _LogSumAndTarget(torch.autograd.Function):
    """Computes each chunk again in the backward and writes its gradients where they belong.

    Splitting parameters and checkpointing the parts would do the same sums, but autograd would keep all parts'
    gradients until the last and then join them: the gradients' memory once more.
    """

    @staticmethod
    def forward(ctx: Any, plan: ChunkedLogits, labels: Tensor, query: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        log_sum = query.new_full(labels.shape, -torch.inf)
        target = query.new_zeros(labels.shape)
        for start in plan.starts():
            chunk_sum, chunk_target = plan._terms(query, labels, start, plan.chunk(start))
            log_sum, target = torch.logaddexp(log_sum, chunk_sum), target + chunk_target
        ctx.plan = plan
        ctx.save_for_backward(labels, query, log_sum, *tensors)  # checks that nothing was changed in between
        return log_sum, target

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_sum: Tensor, grad_target: Tensor) -> tuple[Tensor | None, ...]:
        labels, query, log_sum, *tensors = ctx.saved_tensors
        plan: ChunkedLogits = ctx.plan
        rows, wanted = tensors[: len(plan.rows)], ctx.needs_input_grad[2:]
        row_grads = [torch.zeros_like(row) if want else None for row, want in zip(rows, wanted[1:], strict=False)]
        other_grads: list[Tensor | None] = [None] * (1 + len(plan.shared))  # the query's and the shared tensors'
        for start in plan.starts():
            with torch.autocast(query.device.type, enabled=False):
                logits, leaves = _with_graph(plan, query, start)
                inside, column = _place(labels, start, logits.shape[1])
                grad = torch.exp(logits.detach() - log_sum.unsqueeze(1)).mul_(grad_sum.unsqueeze(1))
                grad.scatter_add_(1, column, (grad_target * inside).unsqueeze(1))
                of_query, *of_rows_and_shared = _gradients(logits, [*leaves, *plan.shared], wanted, grad)
            for total, found in zip(row_grads, of_rows_and_shared, strict=False):
                if total is not None and found is not None:
                    total[start : start + len(found)] = found
            others = [of_query, *of_rows_and_shared[len(rows) :]]
            other_grads = [_sum(total, found) for total, found in zip(other_grads, others, strict=True)]
        return None, None, other_grads[0], *row_grads, *other_grads[1:]


def _with_graph(plan: ChunkedLogits, query: Tensor, start: int) -> tuple[Tensor, list[Tensor]]:
    """A chunk's logits and the leaves, query and rows, that they were computed from."""
    with torch.enable_grad():
        leaves = [tensor.detach().requires_grad_() for tensor in (query, *plan.chunk(start))]
        return plan.logits(leaves[0], start, leaves[1:]), leaves


def _gradients(
    output: Tensor, inputs: Sequence[Tensor], wanted: Sequence[bool], grad: Tensor
) -> tuple[Tensor | None, ...]:
    """Gradients of the wanted inputs, None for the others and for those that the output does not depend on."""
    chosen = [tensor for tensor, want in zip(inputs, wanted, strict=True) if want]
    found = iter(torch.autograd.grad(output, chosen, grad, allow_unused=True))
    return tuple(next(found) if want else None for want in wanted)


def _sum(total: Tensor | None, term: Tensor | None) -> Tensor | None:
    return term if total is None else total if term is None else total + term
