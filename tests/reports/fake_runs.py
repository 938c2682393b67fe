"""Run folders like those of `pml_nivmf.experiments`, without training."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml

SCORES = ("norm", "similarity", "ppk")
KINDS, STRENGTHS = ("crop", "occlude", "blur", "noise"), [0.25, 0.5, 0.75]


def write_run(
    folder: Path,
    loss: dict[str, Any],
    seed: int = 0,
    recall: float | None = 0.5,
    artifacts: bool = True,
    images: bool = True,
    dataset: dict[str, Any] | None = None,
    command: str = "pml-nivmf compare glyphs",
    python: str = "3.11",
) -> Path:
    """A finished run whose R@1 is `recall`."""
    folder.mkdir(parents=True)
    settings = {
        "dataset": dataset or {"Glyphs": {}},
        "model": {"trunk": {"ConvNet": {"width": 32}}, "embedding_size": 128},
        "loss": loss,
        "optimizers": {"model": {"Adam": {"lr": 0.003}}, "proxy_lr": 1e-5},
        "schedule": {"warm_start": True, "patience": None},
        "evaluation": {"metrics": ["mean_average_precision_at_r", "odd: #"], "retrieval": "cosine"},
        "general": {"epochs": 3, "seed": seed, "batch_size": 128, "run_dir": str(folder), "threads": 1},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    environment = {"pml_nivmf": "0.1", "python": python, "git_commit": None, "packages": {"torch": "2.15"}}
    rows = [{"epoch": e, "train_loss": 3 / e, "validation_mean_average_precision_at_r": e / 10} for e in (1, 2, 3)]
    summary = {"seed": seed, "best_epoch": 3, "seconds": 12.5, "selected_by": "validation_mean_average_precision_at_r"}
    summary["test"] = {"recall_at_1": recall, "mean_average_precision_at_r": 0.3, "aurc": 0.2 + seed / 10}
    if artifacts:
        summary["uncertainty"] = uncertainty(images, seed)
        np.savez(folder / "test_items.npz", **items(seed))
        if images:
            np.savez(folder / "thumbnails.npz", **pictures())
    environment |= {"command": command, "seed": seed}
    for name, value in {"environment": environment, "history": rows, "summary": summary}.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


def uncertainty(images: bool, seed: int) -> dict[str, Any]:
    certainty = {
        f"{stem}{suffix}": 0.5 + seed / 100
        for stem in ("certainty_auroc", "aurc", "excess_aurc", "recall_at_coverage_80")
        for suffix in ("", "_similarity", "_ppk")
    }
    kinds, strengths = (KINDS, STRENGTHS) if images else (["as given"], [1.0])
    one = {"share_less_certain": [0.7] * len(strengths)}
    kind = {"strength": strengths, "recall_at_1": [0.1] * len(strengths), **dict.fromkeys(SCORES, one)}
    overall: dict[str, Any] = {score: {"share_less_certain": 0.7} for score in SCORES}
    overall["recall_at_1"] = 0.1
    return {
        "certainty": certainty,
        "degradation": {"items": 40, "recall_at_1": 0.5, "overall": overall, "kinds": dict.fromkeys(kinds, kind)},
        "concentrations": {"concentration": {"mean": 18.0}, "anisotropy": {"median": 0.1, "largest": 0.3}},
    }


def items(seed: int) -> dict[str, np.ndarray]:
    """40 items of 5 classes; every second one is right."""
    return {
        "labels": np.arange(40) // 8,
        "neighbours": (np.arange(40)[:, None] + np.arange(1, 6)) % 40,
        "similarity": np.tile(np.linspace(0.9, 0.5, 5), (40, 1)).astype(np.float32),
        "correct": np.arange(40) % 2 == 0,
        "counted": np.ones(40, dtype=bool),
        "norm": np.random.default_rng(seed).normal(100, 10, 40).astype(np.float32),
    }


def pictures() -> dict[str, np.ndarray]:
    """All pixels of image i have the value i."""
    shades = np.arange(40, dtype=np.uint8)[:, None, None, None] * np.ones((1, 8, 8), dtype=np.uint8)
    return {
        "index": np.arange(40),
        "images": shades,
        "lowest": np.arange(3),
        "highest": np.arange(37, 40),
        "by_class": np.array([[*range(8), -1, -1], [*range(32, 40), -1, -1]]),
        "queries": np.array([0, 9]),
        "degraded": np.zeros((4, 4, 1, 8, 8), dtype=np.uint8),
        "degraded_kinds": np.array(KINDS),
        "degraded_strengths": np.array([0, *STRENGTHS]),
    }


def comparison(folder: Path, seeds: int = 2, **options: Any) -> Path:
    """Runs of two losses; proxy_nca is the better one."""
    for seed in range(seeds):
        write_run(folder / "proxy_nca" / f"seed-{seed}", {"ProxyNCALoss": {}}, seed, 0.7 + seed / 100, **options)
        loss = {"NonIsotropicVMFLoss": {"estimator": "analytic"}}
        write_run(folder / "el_nivmf" / f"seed-{seed}", loss, seed, 0.6 + seed / 100, **options)
    return folder
