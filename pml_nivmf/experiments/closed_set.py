"""What the proxies say: how well calibrated their softmax is, and how unequal their concentrations are."""

from typing import Any

import torch
from pytorch_metric_learning.losses import ProxyNCALoss
from torch import Tensor, nn

from ..losses import JointProxyLoss, ProxyLoss
from ..metrics import concentration_anisotropy, expected_calibration_error

TRAINED_ON = "training images, without augmentation"
KEPT_OUT = "images of the training classes that training did not see"
_ROWS = 256  # items whose probabilities are held at once


def softmax_logits(loss: nn.Module, embeddings: Tensor) -> Tensor | None:
    """Logits (items, classes) of the softmax over proxies that the loss trains, or None if it trains none.

    PML's ProxyNCALoss has a get_logits that gives distances; what it puts into its softmax is −scale·distance.
    """
    if isinstance(loss, ProxyLoss | JointProxyLoss):
        return loss.get_logits(embeddings)
    if isinstance(loss, ProxyNCALoss):
        distances = loss.distance(embeddings, loss.proxies)
        sign = 1 if loss.distance.is_inverted else -1
        return sign * loss.softmax_scale * distances
    return None


@torch.no_grad()
def calibration(loss: nn.Module, embeddings: Tensor, labels: Tensor, images: str = TRAINED_ON) -> dict[str, Any]:
    """ECE of the softmax over proxies on images of the training classes, (items, M) and (items,).

    images: which. Validation and test hold out whole classes; unless evaluation.closed_set_share keeps some out, the
        only images of the classes that the softmax knows are those it was trained on, and this is a calibration of the
        fit, not of new images.
    """
    with torch.random.fork_rng():  # Monte-Carlo logits are the same every time, and disturb nobody
        torch.manual_seed(0)
        rows = [softmax_logits(loss, part) for part in embeddings.split(_ROWS)]
    if rows[0] is None:
        return {"left_out": f"{type(loss).__name__} trains no softmax over its proxies"}
    probabilities = torch.cat([row.double().softmax(dim=1) for row in rows if row is not None])
    confidence, predicted = probabilities.max(dim=1)
    return {
        "images": images,
        "items": len(labels),
        "expected_calibration_error": expected_calibration_error(probabilities, labels),
        "accuracy": float((predicted == labels.to(predicted.device)).double().mean()),
        "confidence": float(confidence.mean()),
    }


@torch.no_grad()
def concentrations(loss: nn.Module) -> dict[str, Any]:
    """Spread over classes of the mean concentration and, where there is one a dimension, of its anisotropy."""
    owner = loss.probabilistic if isinstance(loss, JointProxyLoss) else loss
    found = getattr(owner, "concentration", None) if isinstance(owner, ProxyLoss) else None
    if found is None:
        return {"left_out": f"{type(owner).__name__} has no concentrations"}
    result = {"classes": len(found), "concentration": _spread(found.double().mean(dim=1))}
    if found.shape[1] > 1:
        result["anisotropy"] = _spread(concentration_anisotropy(found))
    return result


def _spread(values: Tensor) -> dict[str, float]:
    levels = torch.tensor([0, 0.25, 0.5, 0.75, 1], dtype=values.dtype, device=values.device)
    names = ("least", "lower_quartile", "median", "upper_quartile", "largest")
    return {"mean": float(values.mean()), **dict(zip(names, values.quantile(levels).tolist(), strict=True))}
