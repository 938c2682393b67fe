"""Run folders as `pml_nivmf.experiments` leaves them, without a training."""

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
    config: dict[str, Any] | None = None,
    command: str = "pml-nivmf compare glyphs",
) -> Path:
    """A finished run whose R@1 is `recall`; `config` replaces whole groups of the configuration."""
    folder.mkdir(parents=True)
    general = {"epochs": 3, "seed": seed, "batch_size": 128, "run_dir": str(folder), "threads": 1}
    settings = {
        "dataset": {"Glyphs": {}},
        "model": {"trunk": {"ConvNet": {"width": 32}}, "embedding_size": 128},
        "loss": loss,
        "miner": {},
        "optimizers": {"model": {"Adam": {"lr": 0.003}}, "proxy_lr": 0.1},
        "schedule": {"warm_start": True, "patience": None},
        "evaluation": {"metrics": ["mean_average_precision_at_r"], "retrieval": "cosine"},
        "general": general,
    } | (config or {})
    (folder / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    environment = {"pml_nivmf": "0.1", "python": "3.11", "git_commit": None, "packages": {"torch": "2.15"}}
    (folder / "environment.json").write_text(json.dumps(environment | {"command": command, "seed": seed}))
    rows = [{"epoch": e, "train_loss": 3 / e, "validation_mean_average_precision_at_r": e / 10} for e in (1, 2, 3)]
    (folder / "history.json").write_text(json.dumps(rows))
    summary = {
        "status": "finished",
        "loss": next(iter(loss)),
        "seed": seed,
        "best_epoch": 3,
        "selected_by": "validation_mean_average_precision_at_r",
        "seconds": 12.5,
        "test": {"recall_at_1": recall, "mean_average_precision_at_r": 0.3, "aurc": 0.2 + seed / 10},
    }
    if artifacts:
        summary["uncertainty"] = uncertainty(images, seed)
        np.savez(folder / "test_items.npz", **items(seed))
        if images:
            np.savez(folder / "thumbnails.npz", **pictures())
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def uncertainty(images: bool, seed: int) -> dict[str, Any]:
    certainty = {
        f"{stem}{suffix}": 0.5 + seed / 100
        for stem in ("certainty_auroc", "aurc", "excess_aurc", "recall_at_coverage_80")
        for suffix in ("", "_similarity", "_ppk")
    }
    kinds, strengths = (KINDS, STRENGTHS) if images else (["as given"], [1.0])
    one = {"share_less_certain": [0.7] * len(strengths), "spearman": -0.25}
    kind = {"strength": strengths, "recall_at_1": [0.1] * len(strengths), **dict.fromkeys(SCORES, one)}
    overall = {score: {"share_less_certain": 0.7, "spearman": None} for score in SCORES}
    calibration = {"items": 9, "expected_calibration_error": 0.04, "accuracy": 0.9, "confidence": 0.86}
    return {
        "certainty": certainty,
        "degradation": {
            "items": 40,
            "recall_at_1": 0.5,
            "overall": overall,
            "kinds": dict.fromkeys(kinds, kind),
        },
        "calibration": calibration if seed == 0 else {"left_out": "FakeLoss trains no softmax over its proxies"},
        "concentrations": {"concentration": {"mean": 18.0}, "anisotropy": {"median": 0.1, "largest": 0.3}},
    }


def items(seed: int = 0) -> dict[str, np.ndarray]:
    """40 items of 5 classes; every other one is right."""
    chance = np.random.default_rng(seed)
    return {
        "labels": np.arange(40) // 8,
        "neighbours": (np.arange(40)[:, None] + np.arange(1, 6)) % 40,
        "similarity": np.tile(np.linspace(0.9, 0.5, 5), (40, 1)).astype(np.float32),
        "correct": np.arange(40) % 2 == 0,
        "counted": np.ones(40, dtype=bool),
        "norm": chance.normal(100, 10, 40).astype(np.float32),
        "likelihood": chance.normal(size=40),
    }


def pictures() -> dict[str, np.ndarray]:
    """Image i is of the one grey value i."""
    shades = np.arange(40, dtype=np.uint8)[:, None, None, None] * np.ones((1, 8, 8), dtype=np.uint8)
    by_class = np.full((2, 10), -1)
    by_class[:, :8] = [range(8), range(32, 40)]
    return {
        "index": np.arange(40),
        "images": shades,
        "lowest": np.arange(3),
        "highest": np.arange(37, 40),
        "by_class": by_class,
        "queries": np.array([0, 9]),
        "degraded": np.zeros((4, 4, 1, 8, 8), dtype=np.uint8),
        "degraded_item": np.array(38),
        "degraded_kinds": np.array(KINDS),
        "degraded_strengths": np.array([0, *STRENGTHS]),
    }


def comparison(folder: Path, seeds: int = 2, **options: Any) -> Path:
    """runs of two losses, one better than the other."""
    for seed in range(seeds):
        write_run(folder / "proxy_nca" / f"seed-{seed}", {"ProxyNCALoss": {}}, seed, 0.7 + seed / 100, **options)
        loss = {"NonIsotropicVMFLoss": {"estimator": "analytic"}}
        write_run(folder / "el_nivmf" / f"seed-{seed}", loss, seed, 0.6 + seed / 100, **options)
    return folder
