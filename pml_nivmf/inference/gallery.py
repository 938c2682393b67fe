"""`ClassGallery`: enrolled classes as distributions, and the answers to queries."""

import contextlib
import copy
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch.utils.data import DataLoader

from ..checks import check_range
from ..files import write_atomically
from ..functional.pairing import unit_vectors
from ..metrics import UndefinedMetricError, threshold_for_precision
from ..metrics.inputs import as_embeddings
from .classes import Label, WithinClassShape, number_labels, shape_axes
from .fitting import fit_gallery
from .mixture import Fitted, GallerySpace, Parameters, ShapeAxes

_EVIDENCE = 3  # images per answer
_FORMAT = {"format": "pml_nivmf gallery", "version": "2"}
_SAVED = ("labels", "names", "info", "index")


class Evidence(NamedTuple):
    """An enrolled image that supports an answer.

    row: in the order of enrolment. name: as passed to `add`. share: of the likelihood of its class.
    """

    row: int
    name: str
    share: float


class Answer(NamedTuple):
    """What `identify` says about one query.

    label: None if the query is refused.
    probability: of `best`, among the enrolled classes.
    known: the probability that the query's class is enrolled, if both are as probable beforehand.
    best: the most probable label, also of a refused query.
    evidence: the images that spoke most for `best`, the strongest first.
    """

    label: Label | None
    probability: float
    known: float
    best: Label
    evidence: list[Evidence]

    @property
    def refusal(self) -> str:
        """Why there is no label; empty if there is one."""
        return "" if self.label is not None else "probably not enrolled" if self.known < 0.5 else "too uncertain"


class ClassGallery:
    r"""Every enrolled class is a distribution on the sphere, made from its few images; queries get a posterior.

    A class is a mixture of von Mises-Fisher distributions, one per image, in the space of a shape K that all classes
    share; the more images a class has, the more it has a shape of its own. Embeddings are raw, with their norms, from
    any model. `gallery(queries)` returns probabilities (queries, classes) for raw embeddings (queries, M);
    `gallery.labels` names the columns.

    Args:
        prior: the shape of other classes of the same model; a gallery with one image per class needs it.
        index: the faiss index that galleries of 20,000 images and more use where faiss is installed: "Flat" finds the
            nearest images exactly, "IVF4096,Flat" approximately. Without faiss, all images are compared.
    """

    def __init__(self, prior: WithinClassShape | None = None, index: str = "Flat"):
        self.prior, self.index = prior, index
        self.labels: list[Label] = []  # the columns of probabilities
        self.names: list[str] = []  # of the enrolled images
        self.info: dict[str, str] = {}  # anything to keep with the gallery, such as the run of its model
        self.embeddings = torch.empty(0, 0)  # raw, (images, M)
        self.classes = torch.empty(0, dtype=torch.long)  # columns, (images,)
        self.space: GallerySpace | None = None

    def __len__(self) -> int:
        """The number of enrolled images."""
        return len(self.classes)

    def add(self, embeddings: Any, labels: Any, names: Sequence[str] | None = None) -> None:
        """Enrol images. After `fit`, new images and classes count at once; fit again when many have come.

        embeddings: raw, (items, M). labels: integers or strings, (items,). names: of the images, for the evidence.
        """
        raw = self._as_raw("embeddings", embeddings)
        names = [""] * len(raw) if names is None else list(map(str, names))
        if len(names) != len(raw):
            raise ValueError(f"names must have one entry for each of {len(raw)} embeddings, got {len(names)}")
        self.labels, columns = number_labels(labels, len(raw), self.labels)
        self.classes = torch.cat([self.classes, columns])
        self.embeddings = torch.cat([self.embeddings.view(-1, raw.shape[1]), raw])
        self.names += names

    def remove(self, label: Label) -> None:
        """Remove a class with all its images."""
        if label not in self.labels:
            raise ValueError(f"{label!r} is not enrolled")
        column = self.labels.index(label)
        del self.labels[column]
        keep = (self.classes != column).nonzero().flatten()
        self.embeddings, self.classes = self.embeddings[keep], self.classes[keep]
        self.classes = self.classes - (self.classes > column).long()
        self.names = [self.names[row] for row in keep.tolist()]
        if self.space is not None:
            self.space = GallerySpace(self.space.axes, self.space.fitted, self.index)

    def add_dataset(self, inference_model: Any, dataset: Any, batch_size: int = 64) -> None:
        """Enrol a data set of (image, label) pairs, embedded by PML's InferenceModel, without its normalisation.

        If the data set has `classes`, as those of torchvision have, labels are their names.
        """
        names = getattr(dataset, "classes", None)
        for images, labels in DataLoader(dataset, batch_size=batch_size):
            numbers = torch.as_tensor(labels).tolist()
            self.add(_embed(inference_model, images), [names[number] for number in numbers] if names else numbers)

    def fit(self) -> "ClassGallery":
        """Learn by leaving images out, and the score of unknown classes by leaving classes out.

        With one image per class, or one class, there is nothing to leave out: the prior's values serve.
        """
        self._require_images()
        directions, classes, prior = unit_vectors(self.embeddings), self.classes, self.prior
        fitted = prior.one_shot if prior is not None else None
        if len(self) > len(self.labels) > 1:
            axes_of = lambda rows: shape_axes(prior, directions[rows], classes[rows])  # noqa: E731
            fitted = fit_gallery(self.embeddings, classes, axes_of)
        if fitted is None:
            problem = f"{len(self)} images of {len(self.labels)} classes are too few to learn from"
            raise ValueError(f"{problem}: add images, or pass prior=WithinClassShape.from_embeddings(…) of others")
        self.space = GallerySpace(shape_axes(prior, directions, classes), fitted, self.index)
        return self

    @torch.no_grad()
    def __call__(self, queries: Any) -> Tensor:
        """Probabilities of the enrolled labels, (queries, classes), for raw embeddings (queries, M)."""
        raw = self._as_raw("queries", queries)
        return torch.cat([scores.softmax(1) for _, scores, _ in self._ready().scores(raw)])

    @torch.no_grad()
    def identify(self, queries: Any, precision: float = 0.95) -> list[Answer]:
        """The most probable label of each query (queries, M), or None.

        A query is refused if its class is probably not enrolled, or if its label is so uncertain that less than a
        share `precision` of the answers to queries of enrolled classes would be right.
        """
        raw, space, labels = self._as_raw("queries", queries), self._ready(), self.labels
        fitted, threshold = space.fitted, math.inf
        _, certainty, known, correct = fitted.calibration
        kept = known >= 0.5
        with contextlib.suppress(UndefinedMetricError):  # no answer is certain enough
            threshold = threshold_for_precision(certainty * kept, correct * kept, precision)
            if threshold <= certainty[kept].min():  # `fit` left out nothing that was less certain
                threshold = min(threshold, precision)
        answers = []
        for part, scores, highest in space.scores(raw):
            probabilities, columns = scores.softmax(1).max(1)
            is_known = fitted.known(highest)
            given = (is_known >= 0.5) & (probabilities >= threshold)
            images = space.contributions(part, columns, _EVIDENCE)
            for row, best in enumerate(labels[column] for column in columns.tolist()):
                evidence = [Evidence(image, self.names[image], share) for image, share in images[row]]
                label = best if given[row] else None
                answers.append(Answer(label, float(probabilities[row]), float(is_known[row]), best, evidence))
        return answers

    @torch.no_grad()
    def label_sets(self, queries: Any, coverage: float = 0.9) -> list[list[Label]]:
        """Labels of each query (queries, M), most probable first; the right one is among them in a share `coverage`.

        Split conformal prediction for queries of enrolled classes [Sadinle et al. 2019]: all labels with a probability
        that a share `coverage` of the images left out by `fit` reached with their right label; at least one.
        """
        check_range("coverage", coverage, at_most=1)
        reached = self._ready().fitted.calibration[0].sort(descending=True).values
        place, labels = math.ceil(coverage * (len(reached) + 1)), self.labels
        threshold = 0.0 if place > len(reached) else float(reached[max(place - 1, 0)])
        sets = []
        for probabilities in self(queries):
            order = probabilities.argsort(descending=True)
            count = max(1, int((probabilities >= threshold).sum()))
            sets.append([labels[column] for column in order[:count].tolist()])
        return sets

    def identify_images(self, inference_model: Any, images: Any, precision: float = 0.95) -> list[Answer]:
        """`identify` for images (queries, …), embedded by PML's InferenceModel, without its normalisation."""
        return self.identify(_embed(inference_model, images), precision)

    def save(self, path: str | Path) -> None:
        """Write one .safetensors file, whole or not at all."""
        tensors = {"embeddings": self.embeddings, "classes": self.classes}
        values: dict[str, Any] = {name: getattr(self, name) for name in _SAVED}
        if self.space is not None:
            *values["fitted"], tensors["fitted"] = self.space.fitted
            tensors["variances"], tensors["vectors"] = self.space.axes
        if self.prior is not None:
            tensors["prior"], values["degrees"] = self.prior.covariance, self.prior.degrees
            if self.prior.one_shot is not None:
                *values["one_shot"], tensors["one_shot"] = self.prior.one_shot
        _write(Path(path), tensors, values)

    @classmethod
    def load(cls, path: str | Path) -> "ClassGallery":
        """Read what `save` wrote; nothing in the file is run."""
        tensors, values = _read(Path(path))
        gallery = cls()
        vars(gallery).update({name: values[name] for name in _SAVED})
        gallery.embeddings, gallery.classes = tensors["embeddings"], tensors["classes"]
        fits = {
            name: Fitted._make([Parameters(*values[name][0]), *values[name][1:], tensors[name]])
            for name in {"fitted", "one_shot"} & values.keys()
        }
        if "prior" in tensors:
            gallery.prior = WithinClassShape(tensors["prior"], values["degrees"], fits.get("one_shot"))
        if "fitted" in fits:
            axes = ShapeAxes(tensors["variances"], tensors["vectors"])
            gallery.space = GallerySpace(axes, fits["fitted"], gallery.index)
        return gallery

    def _ready(self) -> GallerySpace:
        self._require_images()
        if self.space is None:
            raise ValueError("the gallery has not been fitted: call fit() first")
        self.space.update(self.embeddings, self.classes, len(self.labels))
        return self.space

    def _as_raw(self, name: str, embeddings: Any) -> Tensor:
        raw, width = as_embeddings(name, embeddings).cpu().float(), self.embeddings.shape[1]
        if len(self) and raw.shape[1] != width:
            raise ValueError(f"{name} must have {width} columns, as the enrolled ones, got {raw.shape[1]}")
        return raw

    def _require_images(self) -> None:
        if not len(self):
            raise ValueError("the gallery is empty: add images first")


def _embed(inference_model: Any, images: Tensor) -> Tensor:
    """Embeddings with their norms, which InferenceModel removes by default."""
    raw_model = copy.copy(inference_model)
    raw_model.normalize_embeddings = False
    embeddings: Tensor = raw_model.get_embeddings(images)
    return embeddings


def _write(path: Path, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
    """Write tensors, and texts and numbers as JSON, to one .safetensors file."""
    encoded = torch.frombuffer(bytearray(json.dumps(values).encode()), dtype=torch.uint8)
    own = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}  # not shared
    data = save(own | {"json": encoded}, metadata=_FORMAT)
    write_atomically(path, lambda file: file.write(data))


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if not path.is_file():
        raise FileNotFoundError(f"there is no gallery {path}")
    try:
        with safe_open(path, framework="pt") as file:
            if file.metadata() != _FORMAT:
                raise ValueError(f"{path} is not a gallery of this version: enrol again")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dictionary
    except SafetensorError as error:
        raise ValueError(f"{path} cannot be read ({error}): enrol again") from error
    return tensors, json.loads(tensors.pop("json").numpy().tobytes())
