"""The base of all proxy losses: −log softmax over classes of −distance/temperature, as a PML loss."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from pytorch_metric_learning.losses.mixins import WeightRegularizerMixin
from pytorch_metric_learning.utils import common_functions as c_f
from pytorch_metric_learning.utils import loss_and_miner_utils as lmu
from torch import Tensor, nn

from ..checks import check_count, check_positive
from .embeddings import CONCENTRATION_PER_DIMENSION, EmbeddingScaleMixin, check_labels, point_at_class_means
from .parameters import ConcentrationRegularizerMixin
from .softmax import ClassLogits, FullSoftmax, Softmax


class ProxyLoss(ConcentrationRegularizerMixin, WeightRegularizerMixin, EmbeddingScaleMixin, ABC):
    """Softmax loss over class proxies; a subclass defines how images and proxies are compared.

    Needs an optimizer: proxies, concentrations and temperature are parameters. They never change their dtype:
    half-precision embeddings are computed in float32, with autocast off. Reducer input: loss per element.

    Args:
        num_classes: number of classes C.
        embedding_size: M.
        temperature: initial t > 0.
        learnable_temperature: whether t is trained.
        cosine_scale: the softmax starts like one over `cosine_scale`·cos, which sets κ of the proxies at the start.
        initial_concentration: κ of the proxies at the start, instead of `cosine_scale`.
        parametrization: what an optimizer changes: "log", log κ and log t; or "softplus", κ and t themselves, as the
            authors do, kept positive by a softplus that is the identity except near zero.
        concentration: "per_class"; "shared", one row for all classes; or "shared_plus_deviation": log κ_c =
            log κ_shared + δ_c with deviations δ that start at zero and that a penalty draws back to zero.
        concentration_regularizer: the penalty on δ, a PML regularizer; None: mean(δ²). It is a sub-loss of its own.
        concentration_reg_weight: λ ≥ 0, the factor of the penalty.
        embedding_scale: factor on the embeddings. "auto" sets it once, at warm start or on the first training batch, so
            that the mean ‖z‖ starts at `initial_norm_per_dim`·M; until then it is 1. A buffer in the state_dict.
        initial_norm_per_dim: images start as vague distributions if it is small (0.25), as points if it is large.
        softmax: `FullSoftmax()` (default), `SampledSoftmax(n_negatives)` or `ShardedSoftmax()`.
        **kwargs: PML's `distance`, `reducer`, `weight_regularizer`, `embedding_regularizer`, `weight_init_func`, …
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        temperature: float = 1.0,
        learnable_temperature: bool = True,
        cosine_scale: float = 16.0,
        initial_concentration: float | None = None,
        embedding_scale: float | str = "auto",
        initial_norm_per_dim: float = CONCENTRATION_PER_DIMENSION,
        softmax: Softmax | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.num_classes = check_count("num_classes", num_classes, at_least=1)
        self.embedding_size = check_count("embedding_size", embedding_size, at_least=2)
        self.initial_temperature = check_positive("temperature", temperature)
        self.cosine_scale = check_positive("cosine_scale", cosine_scale)
        self.initial_norm_per_dim = check_positive("initial_norm_per_dim", initial_norm_per_dim)
        self.softmax = softmax = softmax or FullSoftmax()
        if (softmax.sparse or softmax.sharded) and (self.weight_regularizer or self.concentration_regularizer):
            raise ValueError(f"a regularizer needs all proxies and dense gradients, not {softmax}")
        self.proxies = nn.Parameter(softmax.create_rows(num_classes, embedding_size, self.weight_init_func))
        self._add_positive("temperature", self.initial_temperature).requires_grad_(learnable_temperature)
        self._set_concentrations(initial_concentration)
        self._set_embedding_scale(embedding_scale)
        self.add_to_recordable_attributes(list_of_names=["num_classes", "embedding_size"], is_stat=False)
        self.add_to_recordable_attributes(list_of_names=["avg_query_norm", "current_temperature"], is_stat=True)

    @abstractmethod
    def _references(self, proxies: Tensor, log_concentration: Tensor | None) -> Tensor:
        """Classes as `distance` takes them as `ref_emb`."""

    @abstractmethod
    def _query(self, embeddings: Tensor) -> Tensor:
        """What all classes are compared with; drawn once, so that chunks of classes see the same samples."""

    @abstractmethod
    def _logits(self, query: Tensor, proxies: Tensor, log_concentration: Tensor | None) -> Tensor:
        """(batch, classes) −distance/temperature, up to a constant per image."""

    def forward(self, embeddings: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The reduced loss. `indices_tuple` from a miner weights the samples, as in PML's proxy losses."""
        embeddings = self.accept(embeddings)
        with torch.autocast(embeddings.device.type, enabled=False):
            return super().forward(embeddings, *args, **kwargs)

    def get_logits(self, embeddings: Tensor) -> Tensor:
        """(batch, classes) logits −distance/temperature, up to a constant that is the same for every class."""
        embeddings = self.accept(embeddings)
        with torch.autocast(embeddings.device.type, enabled=False):
            return self.softmax.all_logits(self._class_logits(), self._query(self._scaled(embeddings)))

    def references(self) -> Tensor:
        """The classes of this process as `distance` takes them: distance(embedding_scale·z, references())."""
        proxies, *rows = self.class_parameters().values()
        return self._references(proxies, self._log_concentration_of(*rows))

    @property
    def temperature(self) -> Tensor:
        return torch.exp(self._log_of("temperature", getattr(self, f"{self.parametrization}_temperature")))

    @property
    def _ddp_params_and_buffers_to_ignore(self) -> list[str]:
        """DistributedDataParallel reads this and spells names of the module itself with and without a dot."""
        names = self.class_parameters() if self.softmax.sharded else ()
        return [f"{dot}{name}" for name in names for dot in ("", ".")]

    @property
    def probabilistic(self) -> "ProxyLoss":
        """The loss itself, as `JointProxyLoss.probabilistic` is the proxy loss of the two."""
        return self

    def warm_start(self, embeddings: Tensor, labels: Tensor) -> None:
        """Point each proxy at the mean of its class and set an automatic scale. All ranks must pass all embeddings."""
        embeddings = self.accept(embeddings.detach())
        c_f.check_shapes(embeddings, labels)
        labels = labels.to(embeddings.device)
        check_labels(labels, self.num_classes)
        point_at_class_means(self.proxies, embeddings, labels, self.softmax.own_classes(self.num_classes).start)
        self._see_norms(embeddings, recalibrate=True)

    def compute_loss(
        self, embeddings: Tensor, labels: Tensor | None, indices_tuple: Any, ref_emb: Tensor, ref_labels: Tensor | None
    ) -> dict[str, dict[str, Any]]:
        c_f.labels_required(labels)
        assert labels is not None
        c_f.ref_not_supported(embeddings, labels, ref_emb, ref_labels)
        check_labels(labels, self.num_classes)
        if self.training:
            self._see_norms(embeddings)
        query = self._query(self._scaled(embeddings))
        losses = self.softmax.losses(self._class_logits(), query, labels.long(), self.training)
        losses = losses * lmu.convert_to_weights(indices_tuple, labels, dtype=embeddings.dtype)
        indices = c_f.torch_arange_from_size(embeddings)
        loss_dict = {"loss": {"losses": losses, "indices": indices, "reduction_type": "element"}}
        self.add_weight_regularization_to_loss_dict(loss_dict, self.proxies)
        self.add_concentration_regularization_to_loss_dict(loss_dict)
        if self.collect_stats or self.distance.collect_stats:
            self._set_stats(embeddings)
        return loss_dict

    def _class_logits(self) -> ClassLogits:
        rows = tuple(self.class_parameters().values())
        shared = tuple(p for p in self.parameters() if p.requires_grad and all(p is not row for row in rows))

        def logits_of(query: Tensor, proxies: Tensor, *concentrations: Tensor) -> Tensor:
            return self._logits(query, proxies, self._log_concentration_of(*concentrations))

        return ClassLogits(logits_of, rows, shared, self.num_classes)

    @torch.no_grad()
    def _set_stats(self, embeddings: Tensor) -> None:
        """Also those of the distance, because losses do not always call `distance.forward`."""
        vectors = self._scaled(embeddings), self.references()
        self.avg_query_norm = torch.linalg.vector_norm(vectors[0], dim=1).mean().item()
        self.current_temperature = self.temperature.item()
        self.distance.set_default_stats(*vectors, *map(self.distance.maybe_normalize, vectors))
