"""A training that leaves the numbers is stopped where it does, measured, and kept for a look."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..losses import JointProxyLoss, ProxyLoss
from . import checkpoint
from .build import Parts
from .dying_ranks import finishing

if TYPE_CHECKING:
    from .training import Trainer

CRASH = "crash.pt"
_NAMED = 4  # parameters that are named in the message; crash.pt has all


class DivergedError(FloatingPointError):
    """The loss or its gradients are no longer numbers."""


def gradients(*modules: nn.Module) -> Iterator[Tensor]:
    """Of all parameters that have one; of a sparse one its values."""
    for module in modules:
        for parameter in module.parameters():
            if parameter.grad is not None:
                yield _values(parameter.grad)


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Without a mask as large as the tensors, and asking the device once."""
    finite = [torch.stack(torch.aminmax(each.detach())).isfinite().all() for each in tensors if each.numel()]
    return not finite or bool(torch.stack(finite).all())


@contextlib.contextmanager
def explained(
    parts: Parts, trainer: "Trainer", epoch: int, folder: Path, state: Callable[[], dict[str, Any]] | None
) -> Iterator[None]:
    """A FloatingPointError within the block is raised again with what was measured and what can be done.

    state: gives what goes into crash.pt beside the measurements and the batch; None: no file is written.
    """
    try:
        yield
    except FloatingPointError as error:
        with finishing():
            found = measure(parts, trainer)
            where = f"epoch {epoch}, step {trainer.iteration + 1} of {trainer.iterations_per_epoch}"
            if not isinstance(error, DivergedError):
                where = f"the evaluation after epoch {epoch}"
            message = f"training diverged in {where}: {error}. {_sentence(found)}. {_REMEDY}"
            if state is not None:
                _keep(folder / CRASH, state() | {"epoch": epoch, "statistics": found}, trainer)
                message += f"; the weights and the batch are in {folder / CRASH}, the checkpoints before it are intact"
        raise FloatingPointError(message) from error


def _keep(path: Path, state: dict[str, Any], trainer: "Trainer") -> None:
    batch = {"embeddings": trainer.embeddings.cpu(), "labels": trainer.labels.cpu(), "step": trainer.iteration + 1}
    checkpoint.write_atomically(path, lambda file: torch.save(state | batch, file))


_REMEDY = (
    "Resuming would end here again: start anew (another general.run_dir, or --overwrite) with lower rates "
    "(optimizers.model, proxy_lr, concentration_lr, temperature_lr), a higher temperature of the loss, or "
    "optimizers.clip_norm"
)


@torch.no_grad()
def measure(parts: Parts, trainer: "Trainer") -> dict[str, Any]:
    """What tells where the numbers were left."""
    owner = parts.loss.probabilistic if isinstance(parts.loss, JointProxyLoss) else parts.loss
    found: dict[str, Any] = {"largest embedding norm": float(trainer.embeddings.float().norm(dim=1).max())}
    if isinstance(owner, ProxyLoss):
        found["temperature"] = float(owner.temperature)
        concentration = getattr(owner, "concentration", None)
        if concentration is not None:
            found["concentrations"] = [float(end) for end in torch.aminmax(concentration)]
    found["rates"] = {
        name.removesuffix("_optimizer"): sorted({float(group["lr"]) for group in optimizer.param_groups})
        for name, optimizer in parts.optimizers.items()
    }
    named = [
        (f"{part}.{name}", parameter)
        for part, module in (("trunk", parts.trunk), ("embedder", parts.embedder), ("loss", parts.loss))
        for name, parameter in module.named_parameters()
    ]
    found["not finite: parameters"] = [name for name, p in named if not all_finite([p])]
    found["not finite: gradients"] = [n for n, p in named if p.grad is not None and not all_finite([_values(p.grad)])]
    return found


def _values(tensor: Tensor) -> Tensor:
    return tensor._values() if tensor.is_sparse else tensor


def _sentence(found: dict[str, Any]) -> str:
    return "; ".join(f"{name}: {_words(value)}" for name, value in found.items())


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_words(entry)}" for key, entry in value.items())
    if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
        more = f" and {len(value) - _NAMED} more" if len(value) > _NAMED else ""
        return (", ".join(value[:_NAMED]) or "none") + more
    if isinstance(value, list):
        return " to ".join(_words(entry) for entry in value)
    return f"{value:.4g}"
