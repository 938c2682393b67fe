"""PML's AccuracyCalculator for raw embeddings, with any Recall@k, mAP@1000, certainty and diversity."""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from pytorch_metric_learning.utils.accuracy_calculator import (
    EQUALITY,
    AccuracyCalculator,
    maybe_get_avg_of_avgs,
    nan_accuracy,
    try_getting_not_lone_labels,
)
from torch import Tensor

from ..checks import check_count, check_option, check_positive
from ..functional.pairing import unit_vectors
from .certainty import CERTAINTY_METRICS, certainty_metric, certainty_scores
from .diversity import DIVERSITY
from .inputs import as_embeddings, as_labels, or_nan

_RECALL = re.compile(r"recall_at_([1-9]\d*)")
_AT_R = ("r_precision", "mean_average_precision_at_r")


class ProbabilisticAccuracyCalculator(AccuracyCalculator):
    r"""PML's metrics and more, from raw embeddings with their norms.

    Use it with `GlobalEmbeddingSpaceTester(normalize_embeddings=False, accuracy_calculator=…)`. Metrics:

    - All of PML's, such as precision_at_1, r_precision, mean_average_precision_at_r and NMI.
    - recall_at_<k> for every k of `recall_at`: the share of queries with at least one item of their class among the k
      nearest. recall_at_1 = precision_at_1.
    - map_at_1000 = mean over queries of Σ_{i ≤ 1000} m_i·P_i / R, with m_i = 1 for a neighbour of the query's class,
      P_i the precision at rank i and R the size of the class *without* the query, as in PML's mean_average_precision.
    - map_at_1000_with_query: the same divided by R+1, the class *with* the query: the denominator in the code of the
      deep metric learning literature, to compare with published mAP@1000. A perfect ranking scores R/(R+1).

    As in PML, queries without any other item of their class are left out of all averages.
    Two groups are computed only if `include` names them, always for the whole set; undefined values are NaN:

    - `CERTAINTY_METRICS`: certainty_auroc, aurc, excess_aurc and recall_at_coverage_50, _80, _90 and _95: how well the
      norm ‖z‖ predicts whether the nearest neighbour is right. The suffix _similarity stands for the similarity to that
      neighbour instead of the norm, _ppk for minus the expected-likelihood distance to it.
    - `DIVERSITY_METRICS`: cluster_diversity, cluster_diversity_per_class and feature_diversity of the queries, on unit
      embeddings for "cosine", raw embeddings for "l2". Not with a label_comparison_fn.

    include: names of metrics, by default all but certainty and diversity. recall_at_<k> may have any k.
    exclude: names of metrics to leave out.
    recall_at: every k of recall_at_<k>.
    retrieval: "cosine" ranks by the angle between embeddings, "l2" by the Euclidean distance of raw embeddings, as in
        the paper's supplement.
    embedding_scale: the factor by which the loss multiplies embeddings; it affects the metrics that end in _ppk.
    device: where to compute, by default a GPU if there is one.
    k: neighbours that mean_average_precision and mean_reciprocal_rank use, by default all. Other metrics use as many as
        they need. Each query needs about 60 bytes per neighbour: 3.7 GB for the test images of SOP with map_at_1000.
    **kwargs: PML's avg_of_avgs, return_per_class, label_comparison_fn, knn_func and kmeans_func. The last two receive
        unit embeddings for "cosine", raw ones for "l2".

    Subclasses add metrics as with PML, by a method calculate_<name>, which receives raw embeddings.
    """

    knn_func: Callable[..., tuple[Tensor, Tensor]]
    label_comparison_fn: Callable[[Tensor, Tensor], Tensor]

    def __init__(
        self,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        *,
        recall_at: Iterable[int] = (1, 2, 4, 8),
        retrieval: str = "cosine",
        embedding_scale: float = 1.0,
        device: torch.device | str | None = None,
        **kwargs: Any,
    ) -> None:
        self.retrieval = check_option("retrieval", retrieval, ("cosine", "l2"))
        self.embedding_scale = check_positive("embedding_scale", embedding_scale)
        recalls = {check_count("recall_at", k) for k in recall_at}
        recalls |= {int(match[1]) for match in map(_RECALL.fullmatch, include) if match}
        self._fixed_depths = {"precision_at_1": 1, "map_at_1000": 1000, "map_at_1000_with_query": 1000}
        self._fixed_depths |= {f"recall_at_{k}": k for k in recalls} | dict.fromkeys(CERTAINTY_METRICS, 1)
        metrics: dict[str, Callable[..., Any]] = {f"recall_at_{k}": self._recall for k in recalls}
        metrics |= {name: partial(certainty_metric, name) for name in CERTAINTY_METRICS}
        metrics |= {name: partial(self._diversity, name) for name in DIVERSITY}
        for name, metric in metrics.items():
            setattr(self, f"calculate_{name}", metric)  # PML collects attributes of this form
        if kwargs.get("label_comparison_fn") and not DIVERSITY.keys().isdisjoint(include):
            raise NotImplementedError("diversity metrics group items by equal labels: not with a label_comparison_fn")
        only_by_name = () if include else (*CERTAINTY_METRICS, *DIVERSITY)
        super().__init__(include, (*exclude, *only_by_name), device=device and torch.device(device), **kwargs)
        if kwargs.get("kmeans_func") is None:  # faiss warns about classes of fewer than 39 items, which are usual
            self.kmeans_func.kwargs["min_points_per_centroid"] = 1
        self._search, self.knn_func = self.knn_func, self._find_neighbours
        if self.label_comparison_fn is EQUALITY:
            self.label_comparison_fn = _equal

    def requires_knn(self) -> list[str]:
        return [*super().requires_knn(), "mean_reciprocal_rank", *self._fixed_depths]

    def determine_k(self, bin_counts: Tensor, num_reference_embeddings: int, ref_includes_query: bool) -> int:
        """As many neighbours as the current metrics need, at most all of them: faiss would pad with -1."""
        available = num_reference_embeddings - int(ref_includes_query)
        searching = [name for name in self.get_curr_metrics() if name in self.requires_knn()]
        return min(max(self._depth(name, bin_counts, ref_includes_query) or available for name in searching), available)

    def _depth(self, name: str, bin_counts: Tensor, ref_includes_query: bool) -> int | None:
        """How many neighbours a metric looks at; None means all."""
        if name in _AT_R or (name not in self._fixed_depths and self.k == "max_bin_count"):
            return max(1, int(bin_counts.max()) - int(ref_includes_query))
        return self._fixed_depths.get(name, self.k)

    @torch.no_grad()
    def get_accuracy(
        self,
        query: Any,
        query_labels: Any,
        reference: Any = None,
        reference_labels: Any = None,
        ref_includes_query: bool = False,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
    ) -> dict[str, Any]:
        """As in PML: the metrics by name. Without a reference, queries are searched among themselves."""
        if reference is None:
            reference, reference_labels, ref_includes_query = query, query_labels, True
        query = as_embeddings("query embeddings", query)
        reference = as_embeddings("reference embeddings", reference)
        if self.label_comparison_fn is _equal:
            query_labels = as_labels("query_labels", query_labels, len(query))
            reference_labels = as_labels("reference_labels", reference_labels, len(reference))
            query_labels, reference_labels = _number_labels(query_labels, reference_labels)
        pairs = (query, query_labels, reference, reference_labels)
        return super().get_accuracy(*pairs, ref_includes_query, include, exclude)

    def _get_accuracy(self, function_dict: dict[str, Callable[..., Any]], **kwargs: Any) -> dict[str, Any]:
        """PML calls this with the keywords of all metrics. Each metric gets only the neighbours that it looks at."""
        if not function_dict.keys().isdisjoint(CERTAINTY_METRICS):
            kwargs |= self._certainties(**kwargs)
        return {name: metric(**self._with_neighbours_of(name, **kwargs)) for name, metric in function_dict.items()}

    def _with_neighbours_of(self, name: str, **kwargs: Any) -> dict[str, Any]:
        if "knn_labels" in kwargs:
            depth = self._depth(name, kwargs["label_counts"][1], kwargs["ref_includes_query"])
            kwargs |= {key: kwargs[key][:, :depth] for key in ("knn_labels", "knn_distances")}
        return kwargs

    def _to_retrieval_space(self, embeddings: Tensor) -> Tensor:
        return unit_vectors(embeddings).contiguous() if self.retrieval == "cosine" else embeddings.contiguous()

    def _find_neighbours(
        self, query: Tensor, k: int, reference: Tensor, ref_includes_query: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Distances and indices of the k nearest references of raw queries; PML calls this as its knn_func."""
        query, reference = self._to_retrieval_space(query), self._to_retrieval_space(reference)
        distances, indices = self._search(query, k, reference, ref_includes_query)
        if bool((indices < 0).any()):
            raise ValueError(f"knn_func found fewer than k={k} neighbours: use an exact index, or a smaller k")
        self._nearest = indices[:, :1].clone()  # PML does not pass indices to the metrics
        return distances, indices

    def get_cluster_labels(self, query: Tensor, query_labels: Tensor, **kwargs: Any) -> Tensor:
        return super().get_cluster_labels(self._to_retrieval_space(query), query_labels, **kwargs)

    calculate_map_at_1000 = AccuracyCalculator.calculate_mean_average_precision  # of 1000 neighbours, see _fixed_depths

    def calculate_map_at_1000_with_query(self, **kwargs: Any) -> Any:
        # PML subtracts the query from its class only if it knows that the references include it.
        return self.calculate_mean_average_precision(**kwargs | {"ref_includes_query": False})

    def _recall(self, knn_labels: Tensor, query_labels: Tensor, **kwargs: Any) -> Any:
        neighbours, labels = try_getting_not_lone_labels(knn_labels, query_labels, kwargs["not_lone_query_mask"])
        if neighbours is None:
            return nan_accuracy(kwargs["label_counts"][0], self.return_per_class)
        hits = self.label_comparison_fn(labels[:, None], neighbours).any(dim=1).double()
        return maybe_get_avg_of_avgs(hits, labels[:, None], self.avg_of_avgs, self.return_per_class)

    def _certainties(self, query: Tensor, reference: Tensor, **kwargs: Any) -> dict[str, Any]:
        """Of the queries that have something to find: `scores`, see `certainty_scores`, and `correct`."""
        counted = kwargs["not_lone_query_mask"]
        nearest = reference[self._nearest[counted].flatten()]
        same = self.label_comparison_fn(kwargs["query_labels"][counted, None], kwargs["knn_labels"][counted, :1])
        scores = certainty_scores(query[counted], nearest, self.retrieval, self.embedding_scale)
        return {"scores": scores, "correct": same.any(dim=1)}

    def _diversity(self, name: str, query: Tensor, query_labels: Tensor, **_: Any) -> float:
        return or_nan(DIVERSITY[name], self._to_retrieval_space(query), query_labels)


def _equal(first: Tensor, second: Tensor) -> Tensor:
    """For torch.eq, PML compares all classes with all references at once: 5.5 GB for SOP. For others it loops."""
    return first == second


def _number_labels(query_labels: Tensor, reference_labels: Tensor) -> tuple[Tensor, Tensor]:
    """The same labels as 0, 1, 2 …: PML converts labels to float32, which merges integers above 2**24."""
    both = torch.cat([query_labels, reference_labels.to(query_labels.device)])
    numbers = torch.unique(both, return_inverse=True)[1]
    return numbers[: len(query_labels)], numbers[len(query_labels) :]


def lower_is_better(name: str) -> bool:
    """True for the areas of risk, and for NLL and calibration error of galleries."""
    return "aurc" in name or name.endswith(("_shot_nll", "_shot_ece"))
