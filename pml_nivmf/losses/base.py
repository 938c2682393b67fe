"""The base of all proxy losses: −log softmax over classes of −distance/temperature, with PML's habits."""

import math
import warnings
from abc import abstractmethod
from typing import Any

import torch
from pytorch_metric_learning.losses import BaseMetricLossFunction
from pytorch_metric_learning.losses.mixins import WeightRegularizerMixin
from pytorch_metric_learning.utils import common_functions as c_f
from pytorch_metric_learning.utils import loss_and_miner_utils as lmu
from torch import Tensor, nn
from torch.nn import functional as F

from ..checks import check_count, check_positive
from ..functional.pairing import at_least_float32
from .checks import check_embeddings, check_labels, check_proxies
from .chunks import ChunkedLogits
from .class_means import point_at_class_means
from .concentrations import ConcentrationRegularizerMixin
from .embedding_scale import CONCENTRATION_PER_DIMENSION, EmbeddingScaleMixin
from .negatives import draw_candidates
from .sharding import Shard, own_shard

# The softmax over classes starts like one over cosines times this: a good ProxyNCA's scale.
STARTING_COSINE_SCALE = 16.0


class ProxyLoss(ConcentrationRegularizerMixin, WeightRegularizerMixin, EmbeddingScaleMixin, BaseMetricLossFunction):
    """Softmax loss over class proxies; a subclass says how images and proxies are compared, by four methods.

    Parameters never change their dtype: half-precision embeddings are computed in float32, with autocast off.
    """

    proxies: nn.Parameter
    log_temperature: Tensor

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        temperature: float = 1.0,
        learnable_temperature: bool = True,
        embedding_scale: float | str = "auto",
        initial_norm_per_dim: float = CONCENTRATION_PER_DIMENSION,
        chunk_size: int | None = None,
        negative_samples: int | None = None,
        sparse: bool = False,
        sharded: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.num_classes = check_count("num_classes", num_classes, at_least=1)
        self.embedding_size = check_count("embedding_size", embedding_size, at_least=2)
        self.chunk_size = None if chunk_size is None else check_count("chunk_size", chunk_size)
        self._set_negative_sampling(negative_samples, sparse)
        self._set_shard(sharded)
        self.add_to_recordable_attributes(list_of_names=["num_classes", "embedding_size"], is_stat=False)
        self.add_to_recordable_attributes(list_of_names=["avg_query_norm", "current_temperature"], is_stat=True)
        self.proxies = nn.Parameter(torch.empty(self.shard.count, embedding_size))
        self.shard.initialise(self.proxies, self.weight_init_func)
        check_proxies(self.proxies)
        self.initial_temperature = check_positive("temperature", temperature)
        self._set_temperature(learnable_temperature)
        self.initial_norm_per_dim = check_positive("initial_norm_per_dim", initial_norm_per_dim)
        self._set_embedding_scale(embedding_scale)

    # What a subclass adds, besides `_starting_norm` of the embedding scale ---------------------------------------

    @abstractmethod
    def _class_parameters(self) -> tuple[Tensor, ...]:
        """Tensors with one row per class; they are handed to `_logits`, whole or in chunks of rows."""

    @abstractmethod
    def _logits(self, query: Tensor, *class_parameters: Tensor) -> Tensor:
        """(batch, classes) from what `_query` made of the embeddings."""

    @abstractmethod
    def _query(self, embeddings: Tensor) -> Tensor:
        """What all classes are compared with; drawn once, so that chunks of classes see the same samples."""

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
            query, rows = self._query(self._scaled(embeddings)), self._class_parameters()
            if self.sharded:
                return self.shard.all_logits(self._plan(self.shard.averaged(rows)), query)
            return self._plan(rows).all_logits(query)

    @property
    def temperature(self) -> Tensor:
        return torch.exp(self.log_temperature)

    def warm_start(self, embeddings: Tensor, labels: Tensor) -> None:
        """Point each proxy at the mean of its class's embeddings and, with `embedding_scale="auto"`, set the scale.

        A class without a sample keeps its direction, with a warning. Proxies keep their lengths: only directions count,
        and a length of about √M makes an optimizer's step a rotation by about the learning rate. With sharded=True each
        rank looks for its own classes: give all ranks all embeddings.
        """
        embeddings = self.accept(embeddings.detach())
        c_f.labels_required(labels)
        c_f.check_shapes(embeddings, labels)
        labels = labels.to(embeddings.device)
        check_labels(labels, self.num_classes)
        own = self.shard.owns(labels)
        found = point_at_class_means(self.proxies, embeddings[own], labels[own] - self.shard.first)
        self._look_at_norms(embeddings, recalibrate=True)
        if not bool(found.all()):
            missing = (~found).nonzero().flatten() + self.shard.first
            shown = ", ".join(map(str, missing[:10].tolist())) + (", …" if len(missing) > 10 else "")
            text = f"warm start: {len(missing)} classes have no sample or no mean and keep their proxies: {shown}"
            warnings.warn(text, stacklevel=2)

    def param_groups(
        self,
        lr: float,
        proxy_lr: float | None = None,
        concentration_lr: float | None = None,
        temperature_lr: float | None = None,
        deviation_lr: float | None = None,
    ) -> list[dict[str, Any]]:
        """Parameter groups for an optimizer, with a rate of their own for proxies, concentrations and temperature.

        Args:
            lr: the model's learning rate, from which the others follow if they are None.
            proxy_lr: default 100·lr. Proxies are few numbers that meet few images each.
            concentration_lr: default lr. Concentrations of single classes overfit at higher rates.
            temperature_lr: default lr.
            deviation_lr: default concentration_lr, for the deviations of concentration="shared_plus_deviation".

        Concentrations and temperature are logarithms, which must not decay to zero: their weight decay is 0.
        With sparse=True each group says by "sparse" whether its gradients are: those are for torch.optim.SparseAdam.
        """
        concentration_lr = lr if concentration_lr is None else concentration_lr
        groups: dict[str, dict[str, Any]] = {
            "proxies": {"lr": 100 * lr if proxy_lr is None else proxy_lr},
            "log_concentration": {"lr": concentration_lr, "weight_decay": 0.0},
            "log_concentration_deviation": {
                "lr": concentration_lr if deviation_lr is None else deviation_lr,
                "weight_decay": 0.0,
            },
            "log_temperature": {"lr": lr if temperature_lr is None else temperature_lr, "weight_decay": 0.0},
        }
        parameters = dict(self.named_parameters())
        found = [{"params": [parameters[k]], "name": k, **v} for k, v in groups.items() if k in parameters]
        if self.sparse:
            for group in found:
                group["sparse"] = any(group["params"][0] is row for row in self._class_parameters())
        return found

    # The loss, in the order in which it happens -----------------------------------------------------------------

    def accept(self, embeddings: Tensor) -> Tensor:
        """The embeddings in the dtype to compute in. Refuses bad ones before anything changes.

        Follows them to their device, as PML's losses do.
        """
        scale = self.embedding_scale if torch.compiler.is_compiling() else self._host_scale or 1.0
        check_embeddings(embeddings, self.embedding_size, scale)
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
        self.add_concentration_regularization_to_loss_dict(loss_dict)
        if self.sharded:
            self.shard.weigh_regularization(loss_dict)
        self._set_stats(embeddings)
        return loss_dict

    def _negative_log_softmax(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        query, rows, offset = self._query(embeddings), self._class_parameters(), None
        if self.sharded:
            return self.shard.negative_log_softmax(self._plan(self.shard.averaged(rows)), query, labels)
        if self.training and self.negative_samples is not None:
            candidates = draw_candidates(labels, self.num_classes, self.negative_samples, query.dtype)
            rows = tuple(F.embedding(candidates.classes, row, sparse=self.sparse) for row in rows)
            offset, labels = candidates.offset, candidates.target
        plan = self._plan(rows, offset)
        if plan.is_whole():
            return F.cross_entropy(plan.logits(query, 0, rows), labels, reduction="none")
        log_sum, target = plan.log_sum_and_target(query, labels)
        return log_sum - target

    def _set_negative_sampling(self, negative_samples: int | None, sparse: bool) -> None:
        self.negative_samples = None if negative_samples is None else check_count("negative_samples", negative_samples)
        self.sparse = bool(sparse)
        if not sparse:
            return
        if negative_samples is None:
            raise ValueError("sparse=True needs negative_samples: a softmax over all classes has gradients for all")
        if self.weight_regularizer is not None or self.concentration_regularizer is not None:
            raise ValueError("sparse=True allows no regularizer of proxies or concentrations: its gradients are dense")

    def _set_shard(self, sharded: bool) -> None:
        if sharded and self.negative_samples is not None:
            raise ValueError("sharded=True compares with all classes: leave negative_samples out")
        self.sharded = bool(sharded)
        self.shard = own_shard(self.num_classes) if sharded else Shard(self.num_classes, rank=0, world=1)

    def sharded_names(self) -> list[str]:
        """The parameters of which this rank has some rows only."""
        own = {id(row) for row in self._class_parameters()} if self.sharded else set()
        return [name for name, parameter in self.named_parameters() if id(parameter) in own]

    @property
    def _ddp_params_and_buffers_to_ignore(self) -> list[str]:
        """DistributedDataParallel asks for this, and spells names of the module itself with and without a dot."""
        return [name for own in self.sharded_names() for name in (own, f".{own}")]

    def _plan(self, rows: tuple[Tensor, ...], offset: Tensor | None = None) -> ChunkedLogits:
        if self.chunk_size is None:
            return ChunkedLogits(self._logits, rows, offset, chunk_size=len(rows[0]))
        by_class = {id(parameter) for parameter in self._class_parameters()}
        shared = tuple(parameter for parameter in self.parameters() if id(parameter) not in by_class)
        return ChunkedLogits(self._logits, rows, offset, self.chunk_size, shared)

    def _set_stats(self, embeddings: Tensor) -> None:
        if self.collect_stats:
            with torch.no_grad():
                self.avg_query_norm = torch.linalg.vector_norm(self._scaled(embeddings), dim=1).mean().item()
                self.current_temperature = self.temperature.item()

    def _set_temperature(self, learnable: bool) -> None:
        log_temperature = torch.tensor(math.log(self.initial_temperature))
        if learnable:
            self.log_temperature = nn.Parameter(log_temperature)
        else:
            self.register_buffer("log_temperature", log_temperature)


def starting_concentration(slope: Tensor, temperature: float) -> float:
    """κ₀ with which the softmax starts at the usual cosine scale: κ₀·slope/t = 16."""
    return STARTING_COSINE_SCALE * temperature / float(slope)
