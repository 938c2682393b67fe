"""PML's AccuracyCalculator for raw embeddings, any Recall@k, mAP@1000, and data of SOP's size."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from torch import Tensor

from ..checks import check_count, check_option, check_positive
from .averages import average
from .catalogue import RELEVANT, K, query_metrics, recalls_in
from .checks import check_counts, check_names, check_reference_starts_with_query
from .items import Items, make_items
from .label_statistics import LabelStatistics, label_statistics
from .neighbours import Search, chunk_rows, search_in_chunks, unit
from .query_metrics import Matches
from .scores import Spaces, scores_in_chunks
from .set_metrics import COVERAGES, certainty_metrics, coverages_in, diversity_metrics, or_nan

_CORRECT = "precision_at_1"  # what a certainty is to predict


class ProbabilisticAccuracyCalculator(AccuracyCalculator):
    r"""PML's metrics and more, from raw embeddings whose norms are kept.

    Use it with `GlobalEmbeddingSpaceTester(normalize_embeddings=False, accuracy_calculator=…)`. Metrics:

    - PML's: precision_at_1, r_precision, mean_average_precision_at_r, mean_average_precision, mean_reciprocal_rank,
      NMI, AMI.
    - recall_at_<k> for every k of `recall_at`: the share of queries with at least one item of their class among the k
      nearest. recall_at_1 = precision_at_1.
    - map_at_1000 = mean over queries of Σ_{i ≤ 1000} m_i·P_i / R, with m_i = 1 for a neighbour of the query's class,
      P_i the precision at rank i and R the items of the class *without* the query: PML's denominator, equal to PML's
      mean_average_precision with k=1000.
    - map_at_1000_with_query: the same over R+1, the class *with* the query: the denominator of the deep metric learning
      literature's code, to compare with published mAP@1000. A perfect ranking scores R/(R+1).

    As in PML, queries without any other item of their class are left out of all averages.

    Only where `include` names them, of the whole set also with avg_of_avgs and return_per_class, NaN where undefined:

    - certainty_auroc, aurc, excess_aurc and recall_at_coverage_<percent>: does the norm ‖z‖ tell right nearest
      neighbours from wrong ones? With _similarity or _ppk at the end, the same of the similarity to the nearest
      neighbour and of minus the expected-likelihood distance to it. `CERTAINTY_METRICS` is a list of all.
    - cluster_diversity, feature_diversity and intra_inter_ratio of the queries, on unit embeddings for "cosine", raw
      ones for "l2". `DIVERSITY_METRICS`; not with a label_comparison_fn.

    Neighbours are searched and scored a chunk of queries at a time; no (queries, neighbours) matrix of the whole set is
    made, so memory grows with the embeddings only. A `k` larger than the data counts as all of it.

    include: metrics to compute, by default all. recall_at_<k> with any k may stand here, also if `recall_at` lacks it.
    exclude: metrics to leave out.
    avg_of_avgs: average the class means.
    return_per_class: give the class means as a list.
    k: how many neighbours mean_average_precision, mean_reciprocal_rank and a subclass's metrics look at: a number,
        "max_bin_count" for the size of the largest class, None for all, which is slow on large sets. Other metrics look
        at what they need, whatever k is.
    label_comparison_fn: as in PML; not with NMI and AMI.
    device: where to compute, by default a GPU if there is one.
    knn_func: as in PML, by default faiss, exact, on the GPU if `device` is one and faiss supports it. It is handed unit
        embeddings for "cosine", raw ones for "l2".
    kmeans_func: as in PML, for NMI and AMI; handed the same embeddings.
    recall_at: the k of recall_at_<k>.
    retrieval: "cosine" ranks by the angle between embeddings, "l2" by the Euclidean distance of raw ones, to which
        norms contribute, as in the paper's supplement.
    batch_size: queries in a chunk; by default as many as keep a chunk near 256 MB.
    embedding_scale: what the loss multiplies embeddings by; it matters to the metrics that end in _ppk.

    Subclasses add metrics as with PML: a method calculate_<name>(self, **kwargs), and the name in requires_knn() if it
    needs neighbours. Beyond PML's keywords it gets `raw_query` and `raw_reference`, the embeddings with their norms,
    and `per_query`, a dict of (queries,) tensors with the value of every mean over queries that is being computed;
    `not_lone_query_mask` tells where these mean something.
    """

    def __init__(
        self,
        include: Iterable[str] = (),
        exclude: Iterable[str] = (),
        avg_of_avgs: bool = False,
        return_per_class: bool = False,
        k: int | str | None = None,
        label_comparison_fn: Callable[[Tensor, Tensor], Tensor] | None = None,
        device: torch.device | str | None = None,
        knn_func: Search | None = None,
        kmeans_func: Callable[[Tensor, int], Tensor] | None = None,
        *,
        recall_at: Iterable[int] = (1, 2, 4, 8),
        retrieval: str = "cosine",
        batch_size: int | None = None,
        embedding_scale: float = 1.0,
    ) -> None:
        include, exclude = check_names("include", include), check_names("exclude", exclude)
        self.retrieval = check_option("retrieval", retrieval, ("cosine", "l2"))
        self.batch_size = None if batch_size is None else check_count("batch_size", batch_size)
        self.recall_at = check_counts("recall_at", (*check_counts("recall_at", recall_at), *recalls_in(include)))
        self.embedding_scale = check_positive("embedding_scale", embedding_scale)
        self.query_metrics = query_metrics(self.recall_at)
        self.certainty_metrics = certainty_metrics((*COVERAGES, *coverages_in(include)))
        self.diversity_metrics = diversity_metrics()
        self._offer(self.query_metrics, self._average)
        self._offer(self.certainty_metrics, self._of_certainty)
        self._offer(self.diversity_metrics, self._of_space)
        if label_comparison_fn and not set(include).isdisjoint(self.diversity_metrics):
            raise NotImplementedError("diversity metrics group items by equal labels: not with a label_comparison_fn")
        only_by_name = () if include else (*self.certainty_metrics, *self.diversity_metrics)
        super().__init__(
            include=include,
            exclude=(*exclude, *only_by_name),
            avg_of_avgs=avg_of_avgs,
            return_per_class=return_per_class,
            k=k,
            label_comparison_fn=label_comparison_fn,
            device=torch.device(device) if isinstance(device, str) else device,
            knn_func=knn_func,
            kmeans_func=kmeans_func,
        )
        if kmeans_func is None:  # PML's, without faiss's warning of fewer than 39 items a class: classes are that small
            self.kmeans_func.kwargs["min_points_per_centroid"] = 1
        found: dict[str, Callable[..., Any]] = self.get_function_dict()
        self.original_function_dict = dict(sorted(found.items(), key=_natural_order))
        self.curr_function_dict = self.get_function_dict()

    def _offer(self, names: Iterable[str], calculate: Callable[..., Any]) -> None:
        """As methods calculate_<name>, which PML looks for."""
        for name in names:
            setattr(self, f"calculate_{name}", partial(calculate, name))

    def requires_knn(self) -> list[str]:
        return [*super().requires_knn(), *self.query_metrics, *self.certainty_metrics]

    def determine_k(self, bin_counts: Tensor, num_reference_embeddings: int, ref_includes_query: bool) -> int:
        """PML's rule for `k`, never more than there is to find: faiss fills up with -1."""
        available = num_reference_embeddings - int(ref_includes_query)
        if self.k is None:
            return available
        wanted = int(bin_counts.max()) - int(ref_includes_query) if self.k == "max_bin_count" else int(self.k)
        return max(0, min(wanted, available))

    @torch.no_grad()
    def get_accuracy(
        self,
        query: Any,
        query_labels: Any,
        reference: Any = None,
        reference_labels: Any = None,
        ref_includes_query: bool = False,
        include: Iterable[str] = (),
        exclude: Iterable[str] = (),
    ) -> dict[str, Any]:
        """PML's: metrics by name. Without a reference, queries are searched among themselves."""
        queries = make_items("query", query, query_labels, self.device, self.label_comparison_fn)
        references, own = queries, ref_includes_query or reference is None
        if reference is not None:
            references = make_items("reference", reference, reference_labels, self.device, self.label_comparison_fn)
        if own and references is not queries:
            check_reference_starts_with_query(*queries, *references)
        self.curr_function_dict = self.get_function_dict(tuple(include), tuple(exclude))
        kwargs = self._base_kwargs(queries, references, own)
        if self._computes(self.requires_knn()):
            kwargs |= self._retrieve(**kwargs)
        if self._computes(self.certainty_metrics):
            kwargs["certainties"] = self._certainties(**kwargs)
        if self._computes(self.requires_clustering()):
            kwargs["cluster_labels"] = self.get_cluster_labels(**kwargs)
        accuracies: dict[str, Any] = self._get_accuracy(self.curr_function_dict, **kwargs)
        return accuracies

    def _base_kwargs(self, queries: Items, references: Items, own: bool) -> dict[str, Any]:
        """What every metric is handed, embeddings as retrieval sees them; queries among references are no copy."""
        to_space = unit if self.retrieval == "cosine" else _as_they_are
        reference = to_space(references.embeddings)
        return {
            "query": reference[: len(queries.labels)] if own else to_space(queries.embeddings),
            "reference": reference,
            "raw_query": queries.embeddings,
            "raw_reference": references.embeddings,
            "query_labels": queries.labels,
            "reference_labels": references.labels,
            "ref_includes_query": own,
            "label_comparison_fn": self.label_comparison_fn,
        }

    def _computes(self, names: Iterable[str]) -> bool:
        return not set(names).isdisjoint(self.get_curr_metrics())

    def _retrieve(
        self,
        query: Tensor,
        reference: Tensor,
        query_labels: Tensor,
        reference_labels: Tensor,
        ref_includes_query: bool,
        **_: Any,
    ) -> dict[str, Any]:
        """What metrics that need neighbours are handed."""
        labels = label_statistics(query_labels, reference_labels, ref_includes_query, self.label_comparison_fn)
        depths = self._depths(labels, len(reference), ref_includes_query)
        kept = self._kept_neighbours(labels, len(reference), ref_includes_query)
        k = max([kept, *depths.values()])
        rows = self.batch_size or chunk_rows(k)
        found = search_in_chunks(self.knn_func, query, reference, k, rows, ref_includes_query)
        return {
            "labels": labels,
            "label_counts": (labels.classes, labels.counts),
            "not_lone_query_mask": labels.not_lone,
            "lone_query_labels": torch.unique(query_labels[~labels.not_lone], dim=0),
            **self._score(found, Items(query, query_labels), reference_labels, labels, depths, kept),
        }

    def _score(
        self,
        found: Iterable[tuple[slice, Tensor, Tensor]],
        queries: Items,
        reference_labels: Tensor,
        labels: LabelStatistics,
        depths: dict[str, int],
        kept: int,
    ) -> dict[str, Any]:
        """Every metric of every query, the nearest reference, and the `kept` nearest neighbours themselves."""
        per_query = {name: queries.embeddings.new_empty(len(queries.labels), dtype=torch.double) for name in depths}
        knn_labels, knn_distances, nearest = [], [], []
        for place, distances, indices in found:
            neighbour_labels = reference_labels[indices]  # (rows, k)
            same = self.label_comparison_fn(queries.labels[place, None], neighbour_labels)
            matches = Matches(same, labels.relevant[place], labels.counted[place])
            for name, depth in depths.items():
                per_query[name][place] = self.query_metrics[name].values(matches.nearest(depth))
            knn_labels.append(neighbour_labels[:, :kept].clone())  # a view would keep the whole chunk
            knn_distances.append(distances[:, :kept].clone())
            nearest.append(indices[:, :1].clone())
        return {
            "per_query": per_query,
            "nearest": torch.cat(nearest),  # (queries, 1), or (queries, 0) where nothing was searched
            "knn_labels": torch.cat(knn_labels),
            "knn_distances": torch.cat(knn_distances),
        }

    def _depths(self, labels: LabelStatistics, references: int, own: bool) -> dict[str, int]:
        """How many neighbours every metric of this evaluation looks at."""
        rules = {RELEVANT: labels.max_relevant, K: self.determine_k(labels.counts, references, own)}
        current = [name for name in self.get_curr_metrics() if name in self.query_metrics]
        if self._computes(self.certainty_metrics) and _CORRECT not in current:
            current.append(_CORRECT)
        asked = {name: self.query_metrics[name].neighbours for name in current}
        return {
            name: min(rules[wanted] if isinstance(wanted, str) else wanted, references - int(own))
            for name, wanted in asked.items()
        }

    def _kept_neighbours(self, labels: LabelStatistics, references: int, own: bool) -> int:
        """Columns of knn_labels: k if a subclass's metric asks for neighbours, else none."""
        foreign = set(self.requires_knn()) - set(self.query_metrics) - set(self.certainty_metrics)
        return self.determine_k(labels.counts, references, own) if self._computes(foreign) else 0

    def _average(
        self, name: str, per_query: dict[str, Tensor], labels: LabelStatistics, **_: Any
    ) -> float | list[float]:
        return average(per_query[name], labels, self.avg_of_avgs, self.return_per_class)

    def _certainties(
        self, query: Tensor, reference: Tensor, raw_query: Tensor, raw_reference: Tensor, nearest: Tensor, **_: Any
    ) -> dict[str, Tensor]:
        """The scores that this evaluation's metrics look at, (queries,) each; none where there are no neighbours."""
        if nearest.shape[1] == 0:
            return {}
        names = {metric.score for name, metric in self.certainty_metrics.items() if self._computes([name])}
        spaces = Spaces(query, reference, raw_query, raw_reference)
        rows = self.batch_size or chunk_rows(query.shape[1])
        return scores_in_chunks(names, spaces, nearest[:, 0], self.embedding_scale, rows)

    def _of_certainty(
        self, name: str, certainties: dict[str, Tensor], per_query: dict[str, Tensor], labels: LabelStatistics, **_: Any
    ) -> float:
        kept = labels.not_lone
        if not certainties or not bool(kept.any()):
            return float("nan")
        metric = self.certainty_metrics[name]
        return or_nan(metric.value, certainties[metric.score][kept], per_query[_CORRECT][kept])

    def _of_space(self, name: str, query: Tensor, query_labels: Tensor, **_: Any) -> float:
        return or_nan(self.diversity_metrics[name], query, query_labels)


def _natural_order(item: tuple[str, Any]) -> tuple[str, int]:
    """recall_at_2 before recall_at_10."""
    stem, _, number = item[0].rpartition("_at_")
    return (stem, int(number)) if number.isdecimal() and stem else (item[0], 0)


def _as_they_are(embeddings: Tensor) -> Tensor:
    return embeddings
