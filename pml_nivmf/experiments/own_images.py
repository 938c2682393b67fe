"""What fits a user's own folder of images: trunk, validation, sampler, batch and epochs; and the time that it takes.

An experiment with a section `fit` gets these as overrides, before those of the command line.
"""

import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import nn
from torch.utils.data import default_collate

from ..data import ImageFolder
from ..data.image_folder import check_images
from . import registry
from .build import Parts, build_parts, check_objects
from .config import Composed, ConfigError, compose

_BATCH, _EPOCHS, _START = 64, (8, 30), 15  # _START: about the seconds of imports and tests
_ENOUGH_CLASSES = 6  # so that, without two for validation, four remain


def fitted(name: str, overrides: Sequence[str]) -> tuple[str, list[str]]:
    """The experiment that fits its images, and its overrides with those that fit it."""
    first = compose(name, overrides)
    if first.fit is None or "ImageFolder" not in first.config.dataset:
        return name, list(overrides)
    check_objects(first)
    if not _has_weights(first, overrides):
        return fitted(first.fit["without_weights"], overrides)
    arguments: Any = OmegaConf.to_container(first.config.dataset["ImageFolder"])
    if isinstance(arguments.setdefault("skip_bad", False), bool):  # with a list, runs do not read all images again
        arguments["skip_bad"] = check_images(Path(arguments["root"]).expanduser(), arguments["skip_bad"])
    if arguments["skip_bad"]:
        print(f"left out, because they cannot be read or are empty: {', '.join(arguments['skip_bad'])}")
    data = ImageFolder(**arguments | {"validation_share": 0})
    chosen = [] if data.num_classes >= _ENOUGH_CLASSES else ["evaluation.select_on=last"]
    if not chosen:
        data = ImageFolder(**arguments)
    for part in ("train", "validation", "test"):
        if 0 < len(labels := getattr(data, part).labels) == len(labels.unique()):
            raise ConfigError(f"{arguments['root']}: one image per {part} class is not enough: add more")
    m = max(2, _BATCH // data.num_classes)  # where classes are small, several are views of one image
    batch_size = m * min(data.num_classes, _BATCH // m)
    epochs = min(_EPOCHS[1], max(_EPOCHS[0], first.fit["images"] // max(batch_size, len(data.train))))
    chosen += [f"general.batch_size={batch_size}", f"general.epochs={epochs}"]
    if not any(text.startswith("sampler=") for text in overrides):
        chosen.append(f"sampler.MPerClassSampler.m={m}")
    places = {"root": str(Path(arguments["root"]).expanduser().resolve()), "skip_bad": arguments["skip_bad"]}
    texts = [f"dataset.ImageFolder.{key}={json.dumps(value, ensure_ascii=False)}" for key, value in places.items()]
    return name, [*chosen, *overrides, *texts]


def _has_weights(first: Composed, overrides: Sequence[str]) -> bool:
    """Whether the weights of the experiment's own model can be had, or the user chooses the model."""
    if "without_weights" not in first.fit or any(text.startswith(("model=", "model.trunk")) for text in overrides):
        return True
    try:
        registry.build("trunk", OmegaConf.to_container(first.config.model.trunk), "model.trunk")
    except ConfigError:
        remedy = "model.trunk.TimmTrunk.weights_file=FILE (or train --weights FILE), of timm's tf_efficientnet_lite0"
        print(f"ImageNet weights cannot be downloaded: a small network is trained. Use {remedy}", file=sys.stderr)
        return False
    return True


def outlook(config: DictConfig, runs: int, workers: int) -> str:
    """What such runs will do, and about how long it takes, from the time of one batch."""
    views, epochs = config.model.cached_views, config.general.epochs
    parts = build_parts(OmegaConf.merge(config, {"model": {"cached_views": None}}))  # type: ignore[arg-type]
    labels = {name: getattr(parts.data, name).labels for name in ("train", "validation", "test")}
    train, validation, test = map(len, labels.values())
    load, step = _seconds_per_image(parts, config.general.batch_size, is_stored=views is not None)
    rounds, drawn = epochs * math.ceil(runs / workers), max(train, config.general.batch_size)
    stored = (2 + (views or 0)) * train + validation + 2 * test  # with degraded ones
    loaded = rounds * (drawn + validation) if views is None else stored
    seconds = _START + rounds * step * (drawn + validation / 3) + load * loaded  # validation: only forward
    duration = f"{seconds / 60:.0f} min" if seconds > 90 else f"{seconds:.0f} s"
    classes = {name: len(values.unique()) for name, values in labels.items() if len(values)}
    trunk = next(arguments.get("name", kind) for kind, arguments in config.model.trunk.items())
    split = f"{sum(classes.values())} classes: " + ", ".join(f"{count} {name}" for name, count in classes.items())
    return f"{split} · {train + validation + test} images · {trunk}: {runs} runs of {epochs} epochs · about {duration}"


def _seconds_per_image(parts: Parts, batch_size: int, is_stored: bool) -> tuple[float, float]:
    """To load an image and, if views are stored, to compute what is stored; to train on it, in one thread."""
    trunk: Any = parts.trunk
    lower = (is_stored and getattr(trunk, "lower", None)) or nn.Identity()
    trunk.takes_maps, threads = is_stored, torch.get_num_threads()
    for _ in range(2):  # the first is slower
        start = time.perf_counter()
        items = [parts.data.train[index % len(parts.data.train)] for index in range(batch_size)]
        images, labels = (values.to(parts.device) for values in default_collate(items))
        with torch.no_grad():
            inputs = lower(images)
        loaded = time.perf_counter()
        torch.set_num_threads(1)
        parts.loss(parts.embed(inputs), labels).backward()
        torch.set_num_threads(threads)
        end = time.perf_counter()
    return (loaded - start) / batch_size, (end - loaded) / batch_size
