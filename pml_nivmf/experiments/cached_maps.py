"""Views of images, or outputs of a trunk's frozen part for them, computed once: a CPU can train on photographs."""

import hashlib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from filelock import FileLock
from torch import Tensor
from torch.utils.data import DataLoader
from tqdm import tqdm

from ..data import DataSplits, DegradedItems, LabelledItems
from ..data.arrays import original, random_view
from ..data.degraded import CROP
from ..data.splits import Source
from ..files import write_atomically
from .config import ConfigError


def path_of(settings: dict[str, Any]) -> Path:
    """A file in `model.cache_dir` that is named after the data, the trunk and the number of views."""
    model = settings["model"]
    more = [] if settings["evaluation"]["select_on"] == "validation" else ["all classes"]
    text = yaml.safe_dump([settings["dataset"], model["trunk"], model["cached_views"], "degraded", *more])
    return Path(model["cache_dir"]) / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.pt"


def with_maps(data: DataSplits, trunk: Any, settings: dict[str, Any]) -> DataSplits:
    """The same splits with outputs of the trunk's frozen part as items, or with images if it has none.

    Training draws from the original and its views.
    """
    lower = (getattr(trunk, "lower", None) or torch.nn.Identity()).to(memory_format=torch.channels_last)  # 1.6× as fast
    trunk.takes_maps = True
    path = path_of(settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        if not path.exists():
            maps = _compute(data, lower, settings)
            write_atomically(path, lambda file: torch.save(maps, file))
    maps = torch.load(path, mmap=True, weights_only=True)
    if len(maps["train"]) != len(data.train) or not torch.equal(maps["labels"], data.test.labels):
        raise ConfigError(f"{path} contains maps of other images: delete it, and they are computed again")
    return replace(
        data,
        train=_stored(data.train, maps["train"], random_view),
        train_plain=_stored(data.train_plain, maps["train"]),
        validation=_stored(data.validation, maps.get("validation", maps["test"])),  # none: there are no such classes
        train_degraded=_stored(data.train_plain, maps["train_degraded"]),
        test=_stored(data.test, maps["test"]),
        test_degraded=_stored(data.test, maps["test_degraded"]),
        degraded_as="crops of a quarter of the area",
        test_images=data.test,
        input_shape=tuple(maps["train"].shape[2:]),
    )


def _compute(data: DataSplits, lower: torch.nn.Module, settings: dict[str, Any]) -> dict[str, Tensor]:
    """Maps (items, versions, channels, height, width) in float16; random views are the same for all runs."""
    views = settings["model"]["cached_views"]
    jobs: dict[str, list[Any]] = {
        "train": [data.train_plain, *[data.train] * views],
        "train_degraded": [DegradedItems(data.train_plain, "crop", CROP)],
        "validation": [data.validation],
        "test": [data.test],
        "test_degraded": [DegradedItems(data.test, "crop", CROP)],
    }
    jobs = {name: versions for name, versions in jobs.items() if len(versions[0])}
    device = next(lower.parameters(), torch.empty(0)).device  # without a frozen part, images are stored
    options = {"batch_size": settings["evaluation"]["batch_size"], "num_workers": settings["general"]["num_workers"]}
    images = sum(len(version) for versions in jobs.values() for version in versions)
    bar = tqdm(total=images, unit="image", desc="views of the images")

    def maps_of(items: Any) -> Tensor:
        parts = []
        for batch, _ in DataLoader(items, **options):
            parts.append(lower(batch.to(device)).half().cpu())
            bar.update(len(batch))
        return torch.cat(parts)

    with torch.no_grad(), torch.random.fork_rng(), bar:
        torch.manual_seed(0)
        maps = {name: torch.stack([*map(maps_of, versions)], dim=1) for name, versions in jobs.items()}
    return maps | {"labels": data.test.labels}


def _stored(items: LabelledItems, maps: Tensor, draw: Any = original) -> LabelledItems:
    everything, to_float32 = torch.ones(len(items), dtype=torch.bool), partial(draw, step=torch.ones(1, 1, 1))
    return LabelledItems(Source(maps, items.labels, items.class_names), everything, to_float32)
