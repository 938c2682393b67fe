"""The base of all proxy losses: −log softmax over classes of −distance/temperature, with PML's habits."""

import math
import warnings
from abc import ABC, abstractmethod
from typing import Any

import torch
from pytorch_metric_learning.losses import BaseMetricLossFunction
from pytorch_metric_learning.losses.mixins import WeightRegularizerMixin
from pytorch_metric_learning.utils import common_functions as c_f
from pytorch_metric_learning.utils import loss_and_miner_utils as lmu
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ..checks import check_count, check_positive
from ..functional.pairing import at_least_float32, unit_vectors
from .checks import check_embeddings, check_labels

# The softmax over classes starts like one over cosines times this: a good ProxyNCA's scale.
STARTING_COSINE_SCALE = 16.0


class ProxyLoss(WeightRegularizerMixin, BaseMetricLossFunction, ABC):
    """Softmax loss over class proxies; a subclass says how images and proxies are compared, by four methods.

    Parameters never change their dtype: half-precision embeddings are computed in float32, with autocast off.
    """

    proxies: nn.Parameter
    log_temperature: Tensor
    embedding_scale: Tensor
    embedding_scale_is_set: Tensor

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        temperature: float = 1.0,
        learnable_temperature: bool = True,
        embedding_scale: float | str = "auto",
        chunk_size: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.num_classes = check_count("num_classes", num_classes, at_least=1)
        self.embedding_size = check_count("embedding_size", embedding_size, at_least=2)
        self.chunk_size = None if chunk_size is None else check_count("chunk_size", chunk_size, at_least=1)
        self.add_to_recordable_attributes(list_of_names=["num_classes", "embedding_size"], is_stat=False)
        self.add_to_recordable_attributes(list_of_names=["avg_query_norm", "current_temperature"], is_stat=True)
        self.proxies = nn.Parameter(torch.empty(num_classes, embedding_size))
        self.weight_init_func(self.proxies)
        if not bool((self.proxies != 0).any(dim=1).all()):
            raise ValueError("weight_init_func left a proxy at zero, which has no direction: use a random one")
        self.initial_temperature = check_positive("temperature", temperature)
        self._set_temperature(learnable_temperature)
        self._set_embedding_scale(embedding_scale)

    # What a subclass adds ---------------------------------------------------------------------------------------

    @abstractmethod
    def _class_parameters(self) -> tuple[Tensor, ...]:
        """Tensors with one row per class; they are handed to `_logits`, whole or in chunks of rows."""

    @abstractmethod
    def _logits(self, query: Tensor, *class_parameters: Tensor) -> Tensor:
        """(batch, classes) from what `_query` made of the embeddings."""

    @abstractmethod
    def _query(self, embeddings: Tensor) -> Tensor:
        """What all classes are compared with; drawn once, so that chunks of classes see the same samples."""

    @abstractmethod
    def _starting_norm(self) -> float | None:
        """The mean norm that embeddings should start with, or None if their norms do not matter."""

    # What a user calls ------------------------------------------------------------------------------------------

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: Any = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        """The reduced loss. `indices_tuple` from a miner weighs the samples, as in PML's own proxy losses."""
        accepted = self.accept(embeddings)
        if ref_emb is embeddings and ref_labels is labels:  # PML reads the batch as its own reference as no reference
            ref_emb = ref_labels = None
        with torch.autocast(accepted.device.type, enabled=False):
            return super().forward(accepted, labels, indices_tuple, ref_emb, ref_labels)

    def get_logits(self, embeddings: Tensor) -> Tensor:
        """(batch, classes) logits −distance/temperature, up to a constant that is the same for every class."""
        embeddings = self.accept(embeddings)
        with torch.autocast(embeddings.device.type, enabled=False):
            return self._logits(self._query(self._scaled(embeddings)), *self._cast_parameters(embeddings.dtype))

    @property
    def temperature(self) -> Tensor:
        return torch.exp(self.log_temperature)

    def warm_start(self, embeddings: Tensor, labels: Tensor) -> None:
        """Point each proxy at the mean of its class's embeddings and, with `embedding_scale="auto"`, set the scale.

        A class without a sample keeps its direction, with a warning. Proxies keep their lengths: only directions count,
        and a length of about √M makes an optimizer's step a rotation by about the learning rate.
        """
        embeddings = self.accept(embeddings.detach())
        c_f.check_shapes(embeddings, labels)
        labels = labels.to(embeddings.device)
        check_labels(labels, self.num_classes)
        sums = embeddings.new_zeros(self.proxies.shape).index_add_(0, labels.long(), embeddings)
        found = torch.linalg.vector_norm(sums, dim=1) > 0
        directions = unit_vectors(sums[found]).to(self.proxies.dtype)
        with torch.no_grad():
            lengths = torch.linalg.vector_norm(self.proxies[found], dim=1, keepdim=True)
            self.proxies[found] = directions * lengths
        self._look_at_norms(embeddings, recalibrate=True)
        if not bool(found.all()):
            missing = (~found).nonzero().flatten().tolist()
            shown = ", ".join(map(str, missing[:10])) + (", …" if len(missing) > 10 else "")
            text = f"warm start: {len(missing)} classes have no sample or no mean and keep their proxies: {shown}"
            warnings.warn(text, stacklevel=2)

    def param_groups(
        self,
        lr: float,
        proxy_lr: float | None = None,
        concentration_lr: float | None = None,
        temperature_lr: float | None = None,
    ) -> list[dict[str, Any]]:
        """Parameter groups for an optimizer, with a rate of their own for proxies, concentrations and temperature.

        Args:
            lr: the model's learning rate, from which the others follow if they are None.
            proxy_lr: default 100·lr. Proxies are few numbers that meet few images each.
            concentration_lr: default lr. Concentrations of single classes overfit at higher rates.
            temperature_lr: default lr.

        Concentrations and temperature are logarithms, which must not decay to zero: their weight decay is 0.
        """
        groups: dict[str, dict[str, Any]] = {
            "proxies": {"lr": 100 * lr if proxy_lr is None else proxy_lr},
            "log_concentration": {"lr": lr if concentration_lr is None else concentration_lr, "weight_decay": 0.0},
            "log_temperature": {"lr": lr if temperature_lr is None else temperature_lr, "weight_decay": 0.0},
        }
        parameters = dict(self.named_parameters())
        return [{"params": [parameters[k]], "name": k, **v} for k, v in groups.items() if k in parameters]

    # The loss, in the order in which it happens -----------------------------------------------------------------

    def accept(self, embeddings: Tensor) -> Tensor:
        """The embeddings in the dtype to compute in. Refuses bad ones before anything changes.

        Follows them to their device, as PML's losses do.
        """
        check_embeddings(embeddings, self.embedding_size, self._host_scale or 1.0)
        if self.proxies.device != embeddings.device:
            self.to(embeddings.device)
        return embeddings.to(torch.promote_types(at_least_float32(embeddings).dtype, self.proxies.dtype))

    def compute_loss(
        self, embeddings: Tensor, labels: Tensor | None, indices_tuple: Any, ref_emb: Tensor, ref_labels: Tensor | None
    ) -> dict[str, dict[str, Any]]:
        c_f.labels_required(labels)
        assert labels is not None
        c_f.ref_not_supported(embeddings, labels, ref_emb, ref_labels)
        check_labels(labels, self.num_classes)
        weights = lmu.convert_to_weights(indices_tuple, labels, dtype=embeddings.dtype)
        if self.training:
            self._look_at_norms(embeddings)
        losses = self._negative_log_softmax(self._scaled(embeddings), labels.long()) * weights
        loss_dict = {
            "loss": {
                "losses": losses,
                "indices": c_f.torch_arange_from_size(embeddings),
                "reduction_type": "element",
            }
        }
        self.add_weight_regularization_to_loss_dict(loss_dict, self.proxies)
        self._set_stats(embeddings)
        return loss_dict

    def _negative_log_softmax(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        query = self._query(embeddings)
        parameters = self._cast_parameters(embeddings.dtype)
        if self.chunk_size is None or self.chunk_size >= self.num_classes:
            return F.cross_entropy(self._logits(query, *parameters), labels, reduction="none")
        # Each chunk of classes is computed again in the backward, so only one chunk's logits are alive at a time.
        log_sums, targets = [], []
        chunks = zip(*(parameter.split(self.chunk_size) for parameter in parameters), strict=True)
        for index, chunk in enumerate(chunks):
            local_labels = labels - index * self.chunk_size
            log_sum, target = checkpoint(self._chunk_terms, query, local_labels, *chunk, use_reentrant=False)
            log_sums.append(log_sum)
            targets.append(target)
        return torch.logsumexp(torch.stack(log_sums), dim=0) - torch.stack(targets).sum(0)

    def _chunk_terms(self, query: Tensor, local_labels: Tensor, *class_parameters: Tensor) -> tuple[Tensor, Tensor]:
        """(log Σ exp of a chunk's logits, the target's logit where the chunk holds it and 0 elsewhere)."""
        logits = self._logits(query, *class_parameters)
        inside = (local_labels >= 0) & (local_labels < logits.shape[1])
        target = logits.gather(1, local_labels.clamp(0, logits.shape[1] - 1).unsqueeze(1)).squeeze(1)
        return torch.logsumexp(logits, dim=1), target.masked_fill(~inside, 0.0)

    def _cast_parameters(self, dtype: torch.dtype) -> tuple[Tensor, ...]:
        return tuple(parameter.to(dtype) for parameter in self._class_parameters())

    def _set_stats(self, embeddings: Tensor) -> None:
        if self.collect_stats:
            with torch.no_grad():
                self.avg_query_norm = torch.linalg.vector_norm(self._scaled(embeddings), dim=1).mean().item()
                self.current_temperature = self.temperature.item()

    # Temperature and embedding scale ----------------------------------------------------------------------------

    def _set_temperature(self, learnable: bool) -> None:
        log_temperature = torch.tensor(math.log(self.initial_temperature))
        if learnable:
            self.log_temperature = nn.Parameter(log_temperature)
        else:
            self.register_buffer("log_temperature", log_temperature)

    def _set_embedding_scale(self, embedding_scale: float | str) -> None:
        automatic = embedding_scale == "auto"
        number = 1.0 if automatic else check_positive('embedding_scale (a number or "auto")', embedding_scale)  # type: ignore[arg-type]
        self.automatic_scale = automatic and self._starting_norm() is not None
        self.register_buffer("embedding_scale", torch.tensor(number))
        self.register_buffer("embedding_scale_is_set", torch.tensor(not self.automatic_scale))
        # The buffer's value on the host, None until it is set: asking a GPU every step would stall it.
        self._host_scale = None if self.automatic_scale else number
        self._norms_seen = False
        self.register_load_state_dict_post_hook(ProxyLoss._after_loading)

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
        if self._host_scale is None:  # not calibrated yet, and evaluating must not calibrate: this batch's own scale
            mean_norm = torch.linalg.vector_norm(embeddings.detach(), dim=1).mean()
            return embeddings * self._scale_for(mean_norm)
        return embeddings * self.embedding_scale.to(embeddings.dtype)

    def _look_at_norms(self, embeddings: Tensor, recalibrate: bool = False) -> None:
        """On the first batch, warn about normalised embeddings; set the scale if it is to be set and is not yet."""
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

    def _scale_for(self, mean_norm: Tensor) -> Tensor:
        """The factor that brings a mean norm to the starting norm; 1 if all norms are zero."""
        target = self._starting_norm()
        assert target is not None
        return torch.where(mean_norm > 0, target / mean_norm.clamp(min=torch.finfo(mean_norm.dtype).tiny), 1.0)


def _mean_over_ranks(norms: Tensor) -> Tensor:
    """The mean over the batches of all processes of a distributed training, which must share one scale."""
    total = torch.stack([norms.sum(), norms.new_tensor(len(norms))])
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(total)
    return total[0] / total[1]


def starting_concentration(slope: Tensor, temperature: float) -> float:
    """κ₀ with which the softmax starts at the usual cosine scale: κ₀·slope/t = 16."""
    return STARTING_COSINE_SCALE * temperature / float(slope)
