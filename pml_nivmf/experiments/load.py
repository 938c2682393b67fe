"""A finished run as objects: model, transform and loss with the weights of the best epoch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from pytorch_metric_learning.utils.inference import InferenceModel
from torch import Tensor, nn
from torchvision.transforms import functional as TF

from ..data.images import ImagePaths
from ..files import write_atomically
from . import checkpoint
from .build import Parts, build_parts
from .config import parse_saved
from .folders import check_run


@dataclass(frozen=True, repr=False)
class LoadedRun:
    """What `load_run` returns, and describes."""

    trunk: nn.Module
    embedder: nn.Module
    loss: nn.Module
    transform: Any
    class_names: list[str] | None
    inference_model: InferenceModel
    parts: Parts

    def read_image(self, path: str | Path) -> Tensor:
        """The input of the trunk for an image file; grey images of another size are resized."""
        channels, height, width = self.parts.data.test[0][0].shape
        image = ImagePaths([path])[0]
        if channels == 1:
            image = TF.pil_to_tensor(image.convert("L").resize((width, height)))
        return torch.as_tensor(self.transform(image))


def load_run(folder: str | Path) -> LoadedRun:
    """Load a run from its folder; its data must still be where they were.

    The result has trunk, embedder and loss, in evaluation mode; transform, from an RGB image to an input, as for test
    images; read_image(path); class_names, of the training classes, or None; and PML's inference_model, for images.
    """
    folder = Path(folder)
    check_run(folder)
    config = parse_saved((folder / "config.yaml").read_text(), str(folder))
    config.model.cached_views = None  # the trunk takes images, and stored views of them are not needed
    parts = build_best(config, folder)
    for module in parts.modules().values():
        module.eval()
    return LoadedRun(
        **parts.modules(),
        transform=parts.data.test.transform,
        class_names=parts.data.train.class_names,
        inference_model=InferenceModel(parts.trunk, parts.embedder, data_device=parts.device),
        parts=parts,
    )


def export(folder: Path, target: Path) -> tuple[tuple[int, ...], str]:
    """Write trunk and embedder of a run's best epoch as one program of torch.export.

    The program takes images (batch, channels, height, width) of any batch size and returns raw embeddings (batch, M).
    Returns the shape of an input, and how images become inputs, in words.
    """
    run = load_run(folder)
    image = run.parts.data.test[0][0]
    model, batch = nn.Sequential(run.trunk, run.embedder), torch.stack([image, image])
    model.cpu().to(memory_format=torch.contiguous_format)  # torch.export warns about weights in other formats
    try:
        program = torch.export.export(model, (batch,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    except Exception as error:  # torch raises many types for code that it cannot trace
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ValueError(f"torch.export cannot export {type(run.trunk).__name__}: {reason}") from error
    write_atomically(target, lambda file: torch.export.save(program, file))
    return tuple(image.shape), " ".join(str(run.transform).split())


def build_best(config: DictConfig, folder: Path) -> Parts:
    """The parts of a run with the weights of its best epoch."""
    parts = build_parts(config)
    checkpoint.load_best(parts, folder)
    return parts
