"""Models of timm and torchvision as trunks, with their own weights or with those of a local file."""

import contextlib
import copy
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from textwrap import shorten
from typing import Any

import timm
from huggingface_hub import constants as hub
from timm.models import load_state_dict
from torch import Tensor, nn
from torchvision import models

from ..checks import nearest

# A trunk returns pooled features, and files are loaded through weights_file, without running pickled code.
_NOT_ALLOWED_IN_TIMM = ("num_classes", "features_only", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path")
_OFFLINE = hub.HF_HUB_OFFLINE  # as the user set it
_CLASSES = 1000  # ImageNet's, as in all of torchvision's weights


class TimmTrunk(nn.Module):
    """Pooled features of a timm model: (batch, channels, height, width) -> (batch, num_features).

    name: timm's name, with or without a tag: "resnet50", "vit_small_patch16_224.dino", "hf-hub:timm/…".
    pretrained: download timm's weights. Not used if `weights_file` is given.
    weights_file: a local state dict (.pth, .pt, .safetensors) of this model; a classifier in it is ignored.
    from_stage: name of a module of a convolutional network, e.g. "blocks.6" (EfficientNet), "layer4" (ResNet) or
        "stages.3" (ConvNeXt): build only the part from this module on; inputs are the maps that it takes.
    frozen_until: name of such a module: the part before it, `lower`, is not trained. Where `takes_maps` is True, inputs
        are outputs of that part; `model.cached_views` in a configuration computes them once and stores them.
    kwargs: for timm.create_model, e.g. in_chans=1, img_size=96, drop_path_rate=0.1.
    """

    def __init__(
        self,
        name: str = "resnet50",
        pretrained: bool = True,
        weights_file: str | Path | None = None,
        from_stage: str | None = None,
        frozen_until: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        if from_stage and frozen_until:
            raise ValueError("from_stage leaves out the part that frozen_until would keep: use one of them")
        for argument in _NOT_ALLOWED_IN_TIMM:
            if argument in kwargs:
                raise ValueError(f"TimmTrunk does not take {argument}: it returns features; use weights_file for files")
        if ":" not in name and not timm.is_model(name):  # timm resolves "hf-hub:…" and "local-dir:…"
            raise ValueError(f"timm has no model {name!r}{nearest(name, timm.list_models())}")
        pretrained = pretrained and weights_file is None
        hub.HF_HUB_OFFLINE = _OFFLINE or (pretrained and not _hub_answers())  # then only timm's local cache is used
        with _download_errors("TimmTrunk", name):
            model: Any = timm.create_model(name, pretrained=pretrained, num_classes=0, **kwargs)
        # Models with a hidden layer after pooling (MobileNetV3, VGG) are wider there.
        self.num_features = int(getattr(model, "head_hidden_size", None) or model.num_features)
        self.model: nn.Module = model
        if weights_file is not None:
            _load_weights(self.model, weights_file)
        self.lower: nn.Module | None = None
        self.takes_maps = from_stage is not None
        if frozen_until is not None:
            self.lower = copy.deepcopy(self.model).eval().requires_grad_(False)
            _remove_modules(self.lower, frozen_until, before=False)
        if stage := from_stage or frozen_until:
            _remove_modules(self.model, stage, before=True)

    def forward(self, images: Tensor) -> Tensor:
        if self.lower is not None and not self.takes_maps:
            images = self.lower(images)
        features: Tensor = self.model(images)  # (batch, num_features)
        return features

    def train(self, mode: bool = True) -> "TimmTrunk":
        super().train(mode)
        if self.lower is not None:
            self.lower.eval()
        return self


def _remove_modules(model: nn.Module, stage: str, before: bool) -> None:
    """Replace the modules before a stage, or that stage and those after it, by nn.Identity.

    The model's own forward then computes the upper or the lower part of a network whose modules run in order.
    """
    if not stage or stage not in dict(model.named_modules()):
        parts = [name for name, _ in model.named_children()]
        raise ValueError(f"the model has no module {stage!r}: it must be, or lie in, one of {', '.join(parts)}")
    parent = model
    *path, last = stage.split(".")
    for name in (*path, last):
        names = [child for child, _ in parent.named_children()]
        position = names.index(name)
        for other in names[:position] if before else names[position + (name != last) :]:
            setattr(parent, other, nn.Identity())
        parent = getattr(parent, name)


class TorchvisionTrunk(nn.Module):
    """Features of a torchvision model before its last layer: (batch, 3, height, width) -> (batch, num_features).

    name: torchvision's name: "resnet50", "densenet121", "convnext_tiny", "vit_b_16".
    pretrained: download torchvision's newest weights, or those named ("IMAGENET1K_V1"), unless `weights_file` is given.
    weights_file: a local state dict (.pth, .pt, .safetensors) of this model; a classifier in it is ignored.
    kwargs: for the model's constructor, e.g. dropout=0.0 for models with dropout before the last layer.
    """

    def __init__(
        self,
        name: str = "resnet50",
        pretrained: bool | str = True,
        weights_file: str | Path | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        weights = None if weights_file is not None else "DEFAULT" if pretrained is True else pretrained or None
        with _download_errors("TorchvisionTrunk", name):
            self.model: Any = models.get_model(name, weights=weights, **kwargs)
        self.model.aux_logits = False
        for side in ("aux1", "aux2", "AuxLogits"):  # of GoogLeNet and Inception-V3, outputs for training
            setattr(self.model, side, None)
        self.num_features = _remove_last_layer(self.model)
        if weights_file is not None:
            _load_weights(self.model, weights_file)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.model(images)  # (batch, num_features)
        return features


def _remove_last_layer(model: nn.Module) -> int:
    """Replace the layer that returns the class scores by nn.Identity; return the width of its input."""
    name, layer = [
        (name, module)
        for name, module in model.named_modules()
        if getattr(module, "out_features", getattr(module, "out_channels", None)) == _CLASSES
    ][-1]
    parent, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(parent), attribute, nn.Identity())
    return int(getattr(layer, "in_features", None) or layer.in_channels)  # SqueezeNet ends in a convolution


def _load_weights(model: nn.Module, file: str | Path) -> None:
    """Load a state dict, also if it is wrapped as {"state_dict": …} or saved from DataParallel or a trunk.

    The file may contain the classifier, which is nn.Identity in a trunk.
    """
    if not Path(file).is_file():
        raise FileNotFoundError(f"weights_file {str(file)!r} is not a file")
    identities = [name for name, module in model.named_modules() if isinstance(module, nn.Identity)]
    left_out = tuple(f"{layer}." for layer in identities)
    try:
        state = load_state_dict(str(file), weights_only=True)
        if all(key.startswith("model.") for key in state):  # saved from a TimmTrunk or TorchvisionTrunk
            state = {key.removeprefix("model."): value for key, value in state.items()}
        model.load_state_dict({key: value for key, value in state.items() if not key.startswith(left_out)})
    except Exception as error:  # pickle, torch, timm and safetensors raise their own classes
        reason = shorten(f"{type(error).__name__}: {error}", width=500)
        raise ValueError(f"cannot load the state dict {file}: {reason}") from error


@contextlib.contextmanager
def _download_errors(trunk: str, name: str) -> Iterator[None]:
    """Say how to continue without a download."""
    try:
        yield
    except OSError as error:
        raise OSError(
            f"cannot download the pretrained weights of {name} ({error}): use pretrained=False, or weights_file=PATH "
            f"(in a configuration model.trunk.{trunk}.pretrained=false, or model.trunk.{trunk}.weights_file=PATH)"
        ) from error


def _hub_answers() -> bool:
    """Ask once, for a few seconds: timm would try for more than a minute."""
    try:
        urllib.request.urlopen(urllib.request.Request(hub.ENDPOINT, method="HEAD"), timeout=5)
    except OSError as error:
        return isinstance(error, urllib.error.HTTPError)
    return True
