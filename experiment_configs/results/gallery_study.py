"""Galleries of unseen classes, next to what people use instead: `python gallery_study.py FOLDER…`.

The models are those of a search, trained with the settings that it chose (the experiments results/cars196_features and
results/omniglot need the path of their data):

    pml-nivmf sweep results/glyphs --losses proxy_nca,el_vmf,el_nivmf --reproduce-best 5
    python gallery_study.py runs/sweeps/results/glyphs

Five random galleries of the test classes for every model. Baselines choose their one setting on the validation classes,
by likelihood, with as many images per class. Logistic regression, which is slow, sees one gallery of each model that
was trained with ProxyNCA. Embeddings can also come from .npz files named LOSS-SEED.npz with `validation`,
`validation_labels`, `test`, `test_labels` and `test_degraded`.
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
from pml_nivmf.metrics import certainty_auroc, draw_gallery, expected_calibration_error, posterior_metrics
from pml_nivmf.reports.run_folders import run_folders_in

SHOTS = (1, 5, 20, None)
SPLITS = 5
COLUMNS = ("data", "loss", "seed", "shots", "method", "queries", "accuracy", "nll", "ece", "ece_noise", "auroc")
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
    """Rows of one model: metrics over the queries of all splits together, because few queries blur the ECE."""
    z = embeddings_of(path)
    labels = torch.unique(z["test_labels"], return_inverse=True)[1]
    prior = WithinClassShape.from_embeddings(z["validation"], z["validation_labels"])
    for shots in SHOTS:
        if shots is not None and int(torch.bincount(labels).min()) < 1.2 * shots:
            continue  # classes have fewer images
        base = {"data": data, "loss": loss, "seed": seed, "shots": shots or "all"}
        draws = [draw_gallery(labels, shots, split) for split in range(SPLITS)]
        for name, (method, settings) in BASELINES.items():
            is_slow = name == "logistic regression"
            if is_slow and loss != "proxy_nca":
                continue
            used = draws[:1] if is_slow else draws
            setting, start = best_setting(method, settings, z, shots, seed), time.perf_counter()
            posteriors = [method(z["test"][rows], labels[rows], z["test"][asked], setting) for rows, asked in used]
            if posteriors[0] is not None:
                row = base | {"method": name, "queries": "whole", "seconds": (time.perf_counter() - start) / len(used)}
                yield row | metrics_of(posteriors, labels, used)
        galleries, start = [ClassGallery(prior) for _ in draws], time.perf_counter()
        for gallery, (rows, asked) in zip(galleries, draws, strict=True):
            gallery.add(z["test"][rows], labels[rows])
            gallery.fit()(z["test"][asked])
        row = base | {"seconds": (time.perf_counter() - start) / SPLITS}
        chosen = [gallery.space.fitted.norm_power for gallery in galleries]
        for name, powers in {"gallery": chosen, "gallery, norms ignored": [0.0], "gallery, norms used": [1.0]}.items():
            for queries, key in {"whole": "test", "degraded": "test_degraded"}.items():
                posteriors = []
                for gallery, (_, asked), power in zip(galleries, draws, powers * (SPLITS // len(powers)), strict=True):
                    gallery.space.fitted = gallery.space.fitted._replace(norm_power=power)
                    posteriors.append(gallery(z[key][asked]))
                metrics = metrics_of(posteriors, labels, draws)
                yield row | {"method": name, "queries": queries, "norm_power": sum(powers) / len(powers)} | metrics
        yield from unknown(z, labels, draws, prior, base)


def metrics_of(posteriors, labels, draws):
    """With the ECE that a perfectly calibrated posterior would have with as many queries: labels drawn from it."""
    probabilities = torch.cat([posterior.double() for posterior in posteriors])
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.multinomial(probabilities, 1, generator=generator)[:, 0] for _ in range(5)]
    least = sum(expected_calibration_error(probabilities, simulated) for simulated in drawn) / len(drawn)
    return posterior_metrics(probabilities, torch.cat([labels[asked] for _, asked in draws])) | {"ece_noise": least}


def unknown(z, labels, draws, prior, base):
    """Enrol half of the classes and ask for all."""
    scores, enrolled = {"gallery": [], "largest cosine": []}, []
    for split, (rows, asked) in enumerate(draws):
        classes = torch.randperm(int(labels.max()) + 1, generator=torch.Generator().manual_seed(split))
        known = torch.isin(labels, classes[: len(classes) // 2])
        rows = rows[known[rows]]
        gallery = ClassGallery(prior)
        gallery.add(z["test"][rows], labels[rows])
        scores["gallery"] += [answer.known for answer in gallery.fit().identify(z["test"][asked])]
        cosines = F.normalize(z["test"][asked]) @ F.normalize(z["test"][rows]).T
        scores["largest cosine"] += cosines.amax(1).tolist()
        enrolled.append(known[asked])
    for method, score in scores.items():
        auroc = certainty_auroc(torch.tensor(score), torch.cat(enrolled))
        yield base | {"method": method, "queries": "half unknown", "known_auroc": auroc}


def loss_and_seed(folder: Path, path: Path):
    """Of LOSS/…/seed-N or LOSS-N.npz."""
    if path.suffix == ".npz":
        return path.stem.rsplit("-", 1)
    return path.relative_to(folder).parts[0], path.name.removeprefix("seed-")


def short(value):
    return f"{value:.5g}" if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path, help="with runs in LOSS/…/seed-N, or LOSS-SEED.npz")
    parser.add_argument("--to", type=Path, default=Path(__file__).with_name("galleries.csv"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    old = list(csv.DictReader(options.to.open(newline=""))) if options.to.exists() else []
    done = {(row["data"], row["loss"], row["seed"]): [] for row in old}
    for row in old:
        done[row["data"], row["loss"], row["seed"]].append(row)
    for folder in options.folders:
        for path in sorted(folder.glob("*.npz")) or run_folders_in(folder):
            loss, seed = loss_and_seed(folder, path)
            is_trial = path.is_dir() and not (path / "best.pt").exists()  # of the search
            if is_trial or (folder.name, loss, seed) in done:
                continue
            done[folder.name, loss, seed] = list(study(path, folder.name, loss, int(seed)))
            rows = [{name: short(value) for name, value in row.items()} for rows in done.values() for row in rows]
            with options.to.open("w", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
            print(folder.name, loss, seed, flush=True)


if __name__ == "__main__":
    main()
