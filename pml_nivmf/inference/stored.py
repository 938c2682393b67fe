"""Galleries in files: tensors, and texts and numbers as JSON, in one .safetensors file."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ..files import write_atomically

_FORMAT = {"format": "pml_nivmf gallery", "version": "1"}


def write(path: Path, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
    encoded = torch.frombuffer(bytearray(json.dumps(values).encode()), dtype=torch.uint8)
    data = save({name: tensor.contiguous() for name, tensor in tensors.items()} | {"json": encoded}, metadata=_FORMAT)
    write_atomically(path, lambda file: file.write(data))


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if not path.is_file():
        raise FileNotFoundError(f"there is no gallery {path}")
    try:
        with safe_open(path, framework="pt") as file:
            if file.metadata() != _FORMAT:
                raise ValueError(f"{path} is not a gallery of this version: enrol again")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dictionary
    except SafetensorError as error:
        raise ValueError(f"{path} cannot be read ({error}): enrol again") from error
    return tensors, json.loads(tensors.pop("json").numpy().tobytes())
