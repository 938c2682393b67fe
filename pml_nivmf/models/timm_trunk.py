"""Any model of timm as a trunk."""

from pathlib import Path
from typing import Any

import timm
from torch import Tensor, nn

from .names import unknown_model
from .weights import load_weights, no_pickled_code


class TimmTrunk(nn.Module):
    """Pooled features of a timm model: (batch, channels, height, width) -> (batch, num_features).

    name: as timm knows it, with or without a tag: "resnet50", "vit_small_patch16_224.dino", "hf-hub:timm/…".
    pretrained: download timm's weights. Not used when `weights_file` is given.
    weights_file: a local state dict (.pth, .pt, .safetensors) of this model; a classifier in it is left out.
    kwargs: for timm.create_model, e.g. in_chans=1, img_size=96, drop_path_rate=0.1.
    """

    num_features: int

    def __init__(
        self,
        name: str = "resnet50",
        pretrained: bool = True,
        weights_file: str | Path | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        _check(name, kwargs)
        self.model = _create(name, pretrained and weights_file is None, kwargs)
        self.num_features = _width(self.model)
        if weights_file is not None:
            load_weights(self.model, weights_file, ignored=_classifier_names(self.model))

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.model(images)  # (batch, num_features)
        if features.ndim != 2 or features.shape[1] != self.num_features:
            raise ValueError(
                f"expected features of shape (batch, {self.num_features}), got {tuple(features.shape)}: "
                "keep timm's global_pool on; a few of its models have no flat features"
            )
        return features


def _check(name: str, kwargs: dict[str, Any]) -> None:
    if ":" not in name and not timm.is_model(name):  # "hf-hub:…" and "local-dir:…" are timm's to resolve
        raise unknown_model("timm", name, timm.list_models())
    for taken in ("num_classes", "features_only"):
        if taken in kwargs:
            raise ValueError(f"{taken}={kwargs[taken]!r} cannot be chosen: a trunk gives pooled features, no classes")
    for loader in ("pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path"):
        if loader in kwargs:  # some of timm's versions unpickle what these name
            raise ValueError(f"{loader} cannot be chosen: load a local file with weights_file")


def _create(name: str, pretrained: bool, kwargs: dict[str, Any]) -> nn.Module:
    try:
        with no_pickled_code():
            return timm.create_model(name, pretrained=pretrained, num_classes=0, **kwargs)
    except OSError as error:
        raise OSError(
            f"the pretrained weights of timm's {name} could not be downloaded ({error}): "
            "use pretrained=False, or weights_file=… with a local copy"
        ) from error


def _width(model: nn.Module) -> int:
    """Of the features. Models with a hidden layer after pooling (MobileNetV3, VGG) are wider there."""
    return int(getattr(model, "head_hidden_size", None) or getattr(model, "num_features"))  # noqa: B009


def _classifier_names(model: nn.Module) -> tuple[str, ...]:
    """The names of a timm model's classification layers; some models have two, e.g. distilled ones."""
    names = getattr(model, "pretrained_cfg", {}).get("classifier") or ("fc", "classifier", "head")
    return (names,) if isinstance(names, str) else tuple(names)
