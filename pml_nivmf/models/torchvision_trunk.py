"""Any classification model of torchvision as a trunk."""

from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torchvision import models

from .names import unknown_model
from .weights import load_weights, no_pickled_code

_CLASSES = 1000  # ImageNet's, as in all of torchvision's weights
_AUXILIARY = ("aux1", "aux2", "AuxLogits")  # side classifiers of GoogLeNet and Inception-V3, used in training only


class TorchvisionTrunk(nn.Module):
    """Features of a torchvision model before its last layer: (batch, 3, height, width) -> (batch, num_features).

    torchvision's GoogLeNet is Inception-V1 with batch norm. Its weights and Inception-V3's come from TensorFlow and
    expect inputs in [-1, 1]; with `transform_input`, on by default wherever weights are loaded, the model converts from
    ImageNet's statistics itself. Pass transform_input=False with a `weights_file` that was trained without it.

    name: as torchvision knows it: "googlenet", "resnet50", "densenet121", "convnext_tiny", "vit_b_16".
    pretrained: download torchvision's newest weights, or those named, e.g. "IMAGENET1K_V1". Not used when
        `weights_file` is given.
    weights_file: a local state dict (.pth, .pt, .safetensors) of this model; a classifier in it is left out.
    kwargs: for the model's constructor, e.g. dropout=0.0 to switch off what some models apply before the last layer.
    """

    num_features: int

    def __init__(
        self,
        name: str = "googlenet",
        pretrained: bool | str = True,
        weights_file: str | Path | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        if name not in models.list_models(module=models):
            raise unknown_model("torchvision", name, models.list_models(module=models))
        weights = None if weights_file is not None else _weights(pretrained)
        options = {} if weights else _options(name, loads_file=weights_file is not None)
        self.model = _create(name, weights, {**options, **kwargs})
        _remove_side_classifiers(self.model)
        classifier, self.num_features = _remove_last_layer(self.model)
        if weights_file is not None:
            load_weights(self.model, weights_file, ignored=(classifier, *_AUXILIARY))

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.model(images)  # (batch, num_features)
        return features


def _weights(pretrained: bool | str) -> str | None:
    if isinstance(pretrained, str):
        return pretrained
    return "DEFAULT" if pretrained else None


def _options(name: str, loads_file: bool) -> dict[str, Any]:
    """What GoogLeNet and Inception-V3 need to be plain trunks; nothing for all others.

    Not with torchvision's own weights: those hold the side classifiers, and torchvision refuses to leave them out.
    """
    if name not in ("googlenet", "inception_v3"):
        return {}
    options: dict[str, Any] = {"aux_logits": False, "init_weights": not loads_file}
    return {**options, "transform_input": True} if loads_file else options


def _create(name: str, weights: str | None, options: dict[str, Any]) -> nn.Module:
    try:
        with no_pickled_code():
            model: nn.Module = models.get_model(name, weights=weights, **options)
    except KeyError as error:  # of the enumeration of weights
        raise ValueError(f"torchvision has no weights {weights!r} of {name}: see its page of models") from error
    except OSError as error:
        raise OSError(
            f"the pretrained weights of torchvision's {name} could not be downloaded ({error}): "
            "use pretrained=False, or weights_file=… with a local copy"
        ) from error
    return model


def _remove_side_classifiers(model: nn.Module) -> None:
    """They cost time and, in training, make the model give more than features."""
    for name in _AUXILIARY:
        if hasattr(model, name):
            setattr(model, name, None)
            setattr(model, "aux_logits", False)  # noqa: B010


def _remove_last_layer(model: nn.Module) -> tuple[str, int]:
    """Put an Identity in place of the layer that gives the class scores; its name and the width of its input."""
    name, layer = [
        (name, module)
        for name, module in model.named_modules()
        if getattr(module, "out_features", getattr(module, "out_channels", None)) == _CLASSES
    ][-1]
    parent, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(parent), attribute, nn.Identity())
    return name, int(getattr(layer, "in_features", None) or layer.in_channels)  # SqueezeNet ends in a convolution
