"""Galleries of unseen classes, next to what people use instead: `python gallery_study.py FOLDER…`.

Every run has its own random galleries (the seed of the run), with queries of the test classes. Baselines choose their
one setting on the validation classes, by likelihood, with as many images per class. Embeddings can also come from .npz
files named LOSS-SEED.npz with `validation`, `validation_labels`, `test`, `test_labels` and `test_degraded`.
"""

import argparse
import csv
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression
from torch.nn import functional as F

from pml_nivmf.data import DegradedItems
from pml_nivmf.experiments import load_run
from pml_nivmf.experiments.evaluate import embed_items
from pml_nivmf.inference import ClassGallery, WithinClassShape
from pml_nivmf.metrics import certainty_auroc, draw_gallery, posterior_metrics
from pml_nivmf.reports.run_folders import run_folders_in

SHOTS = (1, 5, 20, None)
COLUMNS = ("data", "loss", "seed", "shots", "method", "queries", "accuracy", "nll", "ece", "auroc")
COLUMNS += ("accuracy_at_coverage_80", "known_auroc", "norm_power", "seconds")


def nearest_neighbour(gallery, labels, queries, _):
    nearest = labels[(F.normalize(queries) @ F.normalize(gallery).T).argmax(1)]
    return F.one_hot(nearest, int(labels.max()) + 1).double()


def weighted_neighbours(gallery, labels, queries, k):
    """The k nearest images, weighted by e^{10·cosine}."""
    cosines, rows = (F.normalize(queries) @ F.normalize(gallery).T).topk(min(k, len(gallery)), dim=1)
    votes = torch.zeros(len(queries), int(labels.max()) + 1).scatter_add(1, labels[rows], (10 * cosines).exp())
    return (votes / votes.sum(1, keepdim=True)).double()


def nearest_mean(gallery, labels, queries, scale):
    sums = torch.zeros(int(labels.max()) + 1, gallery.shape[1]).index_add(0, labels, F.normalize(gallery))
    return (scale * F.normalize(queries) @ F.normalize(sums).T).softmax(1).double()


def discriminant_analysis(gallery, labels, queries, _):
    if len(gallery) <= int(labels.max()) + 1:  # no deviation within classes
        return None
    model = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto").fit(F.normalize(gallery), labels)
    return torch.from_numpy(model.predict_proba(F.normalize(queries))).double()


def logistic_regression(gallery, labels, queries, c):
    model = LogisticRegression(C=c, max_iter=100).fit(F.normalize(gallery), labels)
    return torch.from_numpy(model.predict_proba(F.normalize(queries))).double()


BASELINES = {  # name: function, settings to choose from
    "nearest neighbour": (nearest_neighbour, (None,)),
    "weighted neighbours": (weighted_neighbours, (5, 10, 20, 50)),
    "nearest mean": (nearest_mean, (8, 12, 16, 24, 32)),
    "discriminant analysis": (discriminant_analysis, (None,)),
    "logistic regression": (logistic_regression, (1, 10, 100)),
}


def embeddings_of(path: Path) -> dict[str, torch.Tensor]:
    if path.suffix == ".npz":
        return {name: torch.from_numpy(array) for name, array in np.load(path).items()}
    parts = load_run(path).parts
    degraded = parts.data.test_degraded or DegradedItems(parts.data.test, "crop", 0.5)
    values = [*embed_items(parts, parts.data.validation), *embed_items(parts, parts.data.test)]
    return dict(
        zip(("validation", "validation_labels", "test", "test_labels"), values, strict=True),
        test_degraded=embed_items(parts, degraded)[0],
    )


def best_setting(method, settings, z, shots: int | None, seed: int):
    """By the likelihood on validation classes."""
    if len(settings) == 1:
        return settings[0]
    labels = torch.unique(z["validation_labels"], return_inverse=True)[1]
    rows, queries = draw_gallery(labels, shots, seed)
    parts = z["validation"][rows], labels[rows], z["validation"][queries]
    return min(settings, key=lambda setting: posterior_metrics(method(*parts, setting), labels[queries])["nll"])


def study(path: Path, data: str, loss: str, seed: int):
    z = embeddings_of(path)
    labels = torch.unique(z["test_labels"], return_inverse=True)[1]
    prior = WithinClassShape.from_embeddings(z["validation"], z["validation_labels"])
    for shots in SHOTS:
        rows, asked = draw_gallery(labels, shots, seed)
        if shots is not None and len(rows) < 0.9 * shots * len(labels.unique()):
            continue  # classes have fewer images
        base = {"data": data, "loss": loss, "seed": seed, "shots": shots or "all"}
        parts = z["test"][rows], labels[rows], z["test"][asked]
        for name, (method, settings) in BASELINES.items():
            setting, start = best_setting(method, settings, z, shots, seed), time.perf_counter()
            probabilities = method(*parts, setting)
            if probabilities is not None:
                row = base | {"method": name, "queries": "whole", "seconds": time.perf_counter() - start}
                yield row | posterior_metrics(probabilities, labels[asked])
        gallery, start = ClassGallery(prior), time.perf_counter()
        gallery.add(*parts[:2])
        gallery.fit()(parts[2])
        row = base | {"seconds": time.perf_counter() - start}
        chosen = gallery.space.fitted.norm_power
        for name, power in {"gallery": chosen, "gallery, norms ignored": 0.0, "gallery, norms used": 1.0}.items():
            gallery.space.fitted = gallery.space.fitted._replace(norm_power=power)
            for queries, key in {"whole": "test", "degraded": "test_degraded"}.items():
                metrics = posterior_metrics(gallery(z[key][asked]), labels[asked])
                yield row | {"method": name, "queries": queries, "norm_power": power} | metrics
        yield from unknown(z, labels, rows, asked, prior, seed, base)


def unknown(z, labels, rows, asked, prior, seed: int, base):
    """Enrol half of the classes and ask for all."""
    classes = torch.randperm(int(labels.max()) + 1, generator=torch.Generator().manual_seed(seed))
    known = torch.isin(labels, classes[: len(classes) // 2])
    gallery = ClassGallery(prior)
    gallery.add(z["test"][rows[known[rows]]], labels[rows[known[rows]]])
    scores = {"gallery": [answer.known for answer in gallery.fit().identify(z["test"][asked])]}
    scores["largest cosine"] = (F.normalize(z["test"][asked]) @ F.normalize(gallery.embeddings).T).amax(1)
    for method, score in scores.items():
        yield base | {"method": method, "queries": "half unknown", "known_auroc": certainty_auroc(score, known[asked])}


def _short(value):
    return f"{value:.5g}" if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path, help="DATA/LOSS/seed-N folders of runs, or DATA/LOSS-SEED.npz")
    parser.add_argument("--to", type=Path, default=Path(__file__).with_name("galleries.csv"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    old = list(csv.DictReader(options.to.open(newline=""))) if options.to.exists() else []
    done = {(row["data"], row["loss"], row["seed"]): [] for row in old}
    for row in old:
        done[row["data"], row["loss"], row["seed"]].append(row)
    for folder in options.folders:
        for path in sorted(folder.glob("*.npz")) or run_folders_in(folder):
            npz = path.suffix == ".npz"
            loss, seed = path.stem.rsplit("-", 1) if npz else (path.parent.name, path.name.removeprefix("seed-"))
            if (folder.name, loss, seed) in done:
                continue
            done[folder.name, loss, seed] = list(study(path, folder.name, loss, int(seed)))
            rows = [
                {n: f"{v:.5g}" if isinstance(v, float) else v for n, v in r.items()} for rs in done.values() for r in rs
            ]
            with options.to.open("w", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
            print(folder.name, loss, seed, flush=True)


if __name__ == "__main__":
    main()
