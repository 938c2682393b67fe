"""Training with PML's MetricLossOnly: warm start, mixed precision, and a stop when the loss or a gradient is NaN."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from omegaconf import DictConfig
from pytorch_metric_learning.trainers import MetricLossOnly
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ..losses import move_scale_to_head, warm_start_from_loader
from ..losses.collectives import mean_over_ranks, world
from . import distributed
from .build import Parts
from .evaluate import embed_items

_REMEDY = (
    "Resuming would fail again: start a new run (another general.run_dir, or --overwrite) with lower rates "
    "(optimizers.model, proxy_lr, concentration_lr, temperature_lr), or optimizers.clip_norm"
)


class Trainer(MetricLossOnly):
    """PML's trainer, which stops with a FloatingPointError before NaN or infinity can reach the weights.

    With float16, steps whose gradients overflow are skipped and the scale of the loss is halved, as GradScaler does.
    Gradients that are not finite at a scale of one are an error.
    """

    embeddings: Tensor  # of the last batch
    iterations_per_epoch: int | None

    def __init__(self, parts: Parts, **arguments: Any):
        super().__init__(**arguments)
        self.parts, self.scaler = parts, parts.scaler
        self.batch_losses: list[float] = []
        if self.dataloader_num_workers:
            self.dataset.seed = torch.zeros((), dtype=torch.long).share_memory_()

    def modify_schema(self) -> None:
        self.schema["optimizers"].important = []  # a trunk without parameters has no optimizer: nothing to warn about

    def initialize_dataloader(self) -> None:
        """As PML's, but workers stay alive between epochs; their seeds are drawn from a generator of their own."""
        generator = torch.Generator().manual_seed(torch.initial_seed())
        workers = {"num_workers": self.dataloader_num_workers, "persistent_workers": self.dataloader_num_workers > 0}
        self.dataloader = DataLoader(self.dataset, batch_sampler=self.sampler, generator=generator, **workers)
        self.iterations_per_epoch = len(self.dataloader)
        self.dataloader_iter = iter(self.dataloader)

    def seed_epoch(self, seed: int, epoch: int) -> None:
        """Seed all generators for an epoch, so that a resumed run repeats its random numbers."""
        distributed.seed_epoch(seed, epoch)
        if self.dataset.seed is not None:
            self.dataset.seed.random_()

    def mean_loss(self) -> float:
        """Return the mean over the batches and ranks since the last call."""
        losses = torch.tensor(self.batch_losses, dtype=torch.float64)
        self.batch_losses.clear()
        return float(mean_over_ranks(losses))

    # Steps of PML's training loop, in the order in which it calls them ------------------------------------------

    def calculate_loss(self, curr_batch: tuple[Tensor, Tensor]) -> None:
        try:
            super().calculate_loss(curr_batch)
        except FloatingPointError as error:  # our losses check the embeddings
            raise self._diverged(str(error)) from error

    def compute_embeddings(self, data: Tensor) -> Tensor:
        with self.parts.autocast():
            embeddings: Tensor = super().compute_embeddings(data)
        self.embeddings = embeddings.detach()
        return embeddings.float()  # PML's losses would cast their proxies to 16 bits permanently

    def backward(self) -> None:
        loss: Tensor = self.losses["total_loss"]
        self.scaler.scale(loss).backward()  # also if it is NaN: the gradients show which parameters are affected
        for optimizer in self.optimizers.values():
            self.scaler.unscale_(optimizer)  # clipping comes next and needs the true norms
        value = self.losses["total_loss"] = float(loss.detach())  # a number for PML's progress bar
        if not math.isfinite(value):
            raise self._diverged(f"the loss is {value}")
        self.batch_losses.append(value)
        if self.scaler.get_scale() <= 1 and not all_finite(self._gradients().values()):
            raise self._diverged(f"the loss is {value:.4g}, but its gradients contain NaN or infinity")

    def clip_gradients(self) -> None:
        most = self.parts.config.optimizers.clip_norm
        for optimizer in () if most is None else self.optimizers.values():
            nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], most)

    def step_optimizers(self) -> None:
        for optimizer in self.optimizers.values():
            self.scaler.step(optimizer)
        self.scaler.update()

    # Divergence -------------------------------------------------------------------------------------------------

    def _gradients(self) -> dict[str, Tensor]:
        named = ((f"{part}.{name}", p) for part, m in self.parts.modules().items() for name, p in m.named_parameters())
        return {name: parameter.grad for name, parameter in named if parameter.grad is not None}

    @torch.no_grad()
    def _diverged(self, reason: str) -> FloatingPointError:
        """Return an error that states step, largest norm, affected parameters and remedy."""
        norm = float(self.embeddings.float().norm(dim=1).max())
        affected = [name for name, gradient in self._gradients().items() if not all_finite([gradient])] or ["none"]
        words = f"largest embedding norm: {norm:.4g}; gradients that are not finite: {', '.join(affected[:4])}"
        place = f"epoch {self.epoch}, step {self.iteration + 1} of {self.iterations_per_epoch}"
        return FloatingPointError(f"training diverged in {place}: {reason}. {words}. {_REMEDY}")


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Return whether all entries are finite, with one synchronisation and no mask as large as the tensors."""
    values = (tensor._values() if tensor.is_sparse else tensor for tensor in tensors)
    finite = [torch.stack(torch.aminmax(value.detach())).isfinite().all() for value in values if value.numel()]
    return not finite or bool(torch.stack(finite).all())


def build_trainer(config: DictConfig, parts: Parts, end_of_epoch: Callable[[Trainer], bool]) -> Trainer:
    """Return a trainer that calls `end_of_epoch` after every epoch and stops if it returns False."""
    loss, miner = distributed.joined(parts.loss, parts.miner)
    models = {"trunk": parts.trunk, "embedder": parts.embedder}
    return Trainer(
        parts,
        models={name: distributed.averaged(model, parts.device) for name, model in models.items()},
        optimizers=parts.optimizers,
        batch_size=config.general.batch_size // world(),
        loss_funcs={"metric_loss": distributed.averaged(loss, parts.device)},
        dataset=parts.data.train,
        mining_funcs={"tuple_miner": miner} if miner is not None else {},
        data_device=parts.device,
        sampler=distributed.RankBatches(parts.sampler, len(parts.data.train), config.general.batch_size),
        lr_schedulers=parts.schedulers,
        freeze_trunk_batchnorm=config.model.freeze_batch_norm,
        dataloader_num_workers=config.general.num_workers,
        end_of_epoch_hook=end_of_epoch,
    )


def fit_norms(parts: Parts) -> None:
    """Let norms say how close an image is to its class; the trunk and the directions of embeddings stay as they are."""
    trunk = replace(parts, embedder=nn.Identity())
    (images, labels), (crops, _) = (embed_items(trunk, x) for x in (parts.data.train_plain, parts.data.train_degraded))
    parts.embedder.fit_norms(images, crops, labels)  # type: ignore[operator]


def warm_start(config: DictConfig, parts: Parts) -> None:
    """Set the proxies to class means, and the head's scale to the norms that the loss starts with."""
    if config.schedule.warm_start and hasattr(parts.loss, "proxies"):
        loader = DataLoader(parts.data.train_plain, batch_size=config.evaluation.batch_size)
        warm_start_from_loader(parts.loss, nn.Sequential(parts.trunk, parts.embedder), loader)
        move_scale_to_head(parts.loss, parts.embedder)
