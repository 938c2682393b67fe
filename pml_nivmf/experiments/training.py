"""PML's trainer, and how weights start."""

import math
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from omegaconf import DictConfig
from pytorch_metric_learning.trainers import MetricLossOnly
from pytorch_metric_learning.utils import common_functions as c_f
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ..losses import can_warm_start, move_scale_to_head, warm_start_from_loader
from ..losses.collectives import world
from . import data_parallel, distributed, interrupts
from .build import Parts
from .divergence import DivergedError, all_finite, gradients


class Trainer(MetricLossOnly):
    """PML's, stopped before the step that would write anything but numbers into the weights.

    With a scaler of gradients, steps that overflow are left out and the scale comes down, as ever with float16; at a
    scale of one the gradients themselves are at fault.
    """

    embeddings: Tensor  # of the last batch, and its labels
    labels: Tensor

    def __init__(self, scaler: torch.amp.GradScaler | None, **arguments: Any):
        super().__init__(**arguments)
        self.scaler = scaler

    def start_epoch(self) -> None:
        self._values: list[float] = []

    def mean_loss(self) -> float:
        """Over the epoch so far."""
        return sum(self._values) / len(self._values)

    # What follows are steps of PML's training loop, in the order it calls them.

    def compute_embeddings(self, data: Tensor) -> Tensor:
        embeddings: Tensor = super().compute_embeddings(data)
        self.embeddings = embeddings.detach()
        if world() > 1:
            self._check_all_ranks()
        return embeddings

    def _check_all_ranks(self) -> None:
        """The loss looks at its own rank's embeddings: without this, the others would wait for a rank that stopped."""
        squares = self.embeddings.float().square().sum(dim=1)
        diverged = distributed.ranks_where(not all_finite([squares]))
        if diverged:
            names = ", ".join(map(str, diverged))
            raise DivergedError(f"embeddings on rank {names} hold NaN, infinity or a norm that is too large")

    def calculate_loss(self, curr_batch: tuple[Tensor, Tensor]) -> None:
        interrupts.check()
        self.labels = curr_batch[1]
        try:
            super().calculate_loss(curr_batch)
        except FloatingPointError as error:  # our losses look at embeddings before they use them
            raise DivergedError(str(error)) from error

    def backward(self) -> None:
        loss: Tensor = self.losses["total_loss"]
        self._differentiate(loss)  # also NaN: the gradients tell which parameters it comes from
        value = float(loss.detach())
        diverged = distributed.ranks_where(not math.isfinite(value))
        if diverged:  # on any rank: with a scaler the others would only leave this step out, and wait for it
            where = f" here, and not finite on rank {', '.join(map(str, diverged))}" if world() > 1 else ""
            raise DivergedError(f"the loss is {value}{where}")
        self._values.append(value)
        scale_may_fall = self.scaler is not None and self.scaler.get_scale() > 1
        if not scale_may_fall and not all_finite(gradients(*self.models.values(), *self.loss_funcs.values())):
            raise DivergedError(f"the loss is {value:.4g}, but its gradients hold NaN or infinity")

    def step_optimizers(self) -> None:
        if self.scaler is None:
            super().step_optimizers()
            return
        for optimizer in self._optimizers_in_use():
            self.scaler.step(optimizer)
        self.scaler.update()

    def _differentiate(self, loss: Tensor) -> None:
        if self.scaler is None:
            loss.backward()
            return
        self.scaler.scale(loss).backward()
        for optimizer in self._optimizers_in_use():
            self.scaler.unscale_(optimizer)  # clipping comes next, and wants the true norms

    def _optimizers_in_use(self) -> Iterator[torch.optim.Optimizer]:
        """Those with a gradient; the scaler refuses others."""
        for optimizer in self.optimizers.values():
            if any(p.grad is not None for group in optimizer.param_groups for p in group["params"]):
                yield optimizer


def build_trainer(config: DictConfig, parts: Parts) -> Trainer:
    if "trunk_optimizer" not in parts.optimizers:  # a trunk without parameters needs none, whatever PML says of it
        c_f.LOGGER.addFilter(lambda record: "trunk_optimizer" not in record.getMessage())
    loss, miner = data_parallel.joined(parts.loss, parts.miner)
    models = {"trunk": parts.trunk, "embedder": parts.embedder}
    return Trainer(
        parts.scaler,
        models={name: data_parallel.averaged(model, parts.device) for name, model in models.items()},
        optimizers=parts.optimizers,
        batch_size=config.general.batch_size // world(),
        loss_funcs={"metric_loss": data_parallel.averaged(loss, parts.device)},
        dataset=parts.data.train,
        mining_funcs={"tuple_miner": miner} if miner is not None else {},
        data_device=parts.device,
        sampler=data_parallel.split(parts.sampler, parts.data.train, config.general.batch_size),
        lr_schedulers=parts.schedulers,
        gradient_clippers=parts.clippers,
        dataloader_num_workers=config.general.num_workers,
    )


def train_epoch(trainer: Trainer, epoch: int) -> float:
    """Returns the mean loss."""
    trainer.start_epoch()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Converting a tensor with requires_grad=True")  # PML's progress bar
        trainer.train(start_epoch=epoch, num_epochs=epoch)
    return distributed.mean(trainer.mean_loss())


def warm_start(config: DictConfig, parts: Parts) -> None:
    """Proxies at class means, and the head at the norms that the loss wants to start with."""
    if config.schedule.warm_start and can_warm_start(parts.loss):
        loader = DataLoader(parts.data.train_plain, batch_size=config.evaluation.batch_size)
        warm_start_from_loader(parts.loss, nn.Sequential(parts.trunk, parts.embedder), loader, parts.device)
        move_scale_to_head(parts.loss, parts.embedder)  # type: ignore[arg-type]
