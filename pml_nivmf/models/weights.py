"""State dicts from local files: read without running pickled code, loaded without silent gaps."""

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from timm.models import load_state_dict
from torch import Tensor, nn

# torchvision's DenseNet files predate its module names: norm.1 is now norm1 [torchvision.models.densenet].
_DENSENET_KEY = re.compile(r"(denselayer\d+\.(?:norm|relu|conv))\.([12])\.")


def load_weights(model: nn.Module, file: str | Path, ignored: Iterable[str]) -> None:
    """Load a .pth, .pt or .safetensors file into `model`.

    ignored: names of layers that the file may hold and the model lacks, such as the classifier. Any other key that is
        missing, unexpected or of another shape is an error.
    """
    state = _read(file)
    wanted = model.state_dict()
    unexpected = [key for key in state if key not in wanted and not _is_in(key, ignored)]
    missing = [key for key in wanted if key not in state]
    shapes = [key for key in wanted if key in state and state[key].shape != wanted[key].shape]
    if missing or unexpected or shapes:
        raise ValueError(
            f"{file} does not fit {type(model).__name__}: "
            f"{_some('missing', missing)}, {_some('unexpected', unexpected)}, {_some('of another shape', shapes)}. "
            "Check that it was saved from the model named here"
        )
    model.load_state_dict({key: state[key] for key in wanted})


@contextlib.contextmanager
def no_pickled_code() -> Iterator[None]:
    """Within the block torch.load runs no code, also where a library of an older day asks it to."""
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _read(file: str | Path) -> dict[str, Tensor]:
    """The state dict in a file, also when it is wrapped as {"state_dict": …} or saved from DataParallel or a trunk."""
    if not Path(file).is_file():
        raise FileNotFoundError(f"weights_file {str(file)!r} does not exist")
    try:
        state = load_state_dict(str(file), weights_only=True)
    except Exception as error:  # pickle's, torch's, timm's and safetensors' own kinds
        raise _no_state_dict(file, str(error).split("\n")[0]) from error
    if not state or not all(isinstance(value, Tensor) for value in state.values()):
        raise _no_state_dict(file, "expected tensors by name")
    if all(key.startswith("model.") for key in state):  # saved from a TimmTrunk or TorchvisionTrunk
        state = {key.removeprefix("model."): value for key, value in state.items()}
    return {_DENSENET_KEY.sub(r"\1\2.", key): value for key, value in state.items()}


def _no_state_dict(file: str | Path, reason: str) -> ValueError:
    return ValueError(f"{file} holds no plain state dict ({reason}): save one with torch.save(model.state_dict(), …)")


def _is_in(key: str, layers: Iterable[str]) -> bool:
    return any(key.startswith(layer + ".") for layer in layers)


def _some(what: str, keys: list[str]) -> str:
    more = ", …" if len(keys) > 3 else ""
    return f"{len(keys)} keys {what}" + (f" ({', '.join(keys[:3])}{more})" if keys else "")
