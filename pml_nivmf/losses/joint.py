"""A probabilistic proxy loss and another proxy loss on the same proxies."""

from typing import Any

import torch
from pytorch_metric_learning.losses import BaseMetricLossFunction
from torch import Tensor, nn

from ..checks import check_range
from ..functional.pairing import detach_zero_rows
from .base import ProxyLoss
from .collectives import gather


class JointProxyLoss(BaseMetricLossFunction):
    r"""Sum of a probabilistic proxy loss and a guidance loss that share one proxy tensor:

        L = L_probabilistic(z) + ω·L_guidance(z)

    With `NonIsotropicVMFLoss` and PML's `ProxyAnchorLoss` it is the paper's PANC + EL-nivMF. The proxies of the
    guidance loss are replaced by those of the probabilistic loss.

    Args:
        probabilistic: one of this package's proxy losses.
        guidance: a PML loss with `.proxies` of the same shape, such as ProxyAnchorLoss or ProxyNCALoss.
        weight: ω ≥ 0. The best one varies: 0.1 to 3 with a pretrained trunk that learns, 0.03 to 30 elsewhere.
        gather_guidance: in a distributed training, the guidance loss sees the images of all ranks, for losses that
            couple them, such as ProxyAnchorLoss; the probabilistic loss sees those of its rank. Wrap the joint loss in
            DistributedDataParallel. With a miner, use `GatheredLoss` and `GatheredMiner` instead.
        **kwargs: PML's `embedding_regularizer`, `collect_stats`, … Reducers are arguments of the two losses.
    """

    def __init__(
        self,
        probabilistic: ProxyLoss,
        guidance: nn.Module,
        weight: float = 0.3,
        gather_guidance: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        _check_shareable(probabilistic, guidance)
        self.probabilistic, self.guidance = probabilistic, guidance
        self._tie()
        self.register_load_state_dict_post_hook(JointProxyLoss._tie)  # loading with assign=True unties
        self.weight, self.gather_guidance = check_range("weight", weight), gather_guidance
        self.add_to_recordable_attributes(list_of_names=["weight"], is_stat=False)

    def _tie(self, _incompatible_keys: Any = None) -> None:
        self.guidance.proxies = self.probabilistic.proxies

    @property
    def proxies(self) -> nn.Parameter:
        return self.probabilistic.proxies

    def forward(self, embeddings: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        embeddings = self.probabilistic.accept(embeddings)
        with torch.autocast(embeddings.device.type, enabled=False):
            return super().forward(embeddings, *args, **kwargs)

    def compute_loss(
        self, embeddings: Tensor, labels: Tensor | None, indices_tuple: Any, ref_emb: Tensor, ref_labels: Tensor | None
    ) -> dict[str, dict[str, Any]]:
        references = {} if ref_emb is embeddings else {"ref_emb": ref_emb, "ref_labels": ref_labels}
        loss = self.probabilistic(embeddings, labels, indices_tuple, **references)
        # PML's losses cast their proxies to the dtype of the embeddings for good: never show them another one.
        images = detach_zero_rows(embeddings.to(self.proxies.dtype))
        if self.gather_guidance:
            if indices_tuple is not None:
                raise ValueError("gather_guidance takes no indices_tuple: use GatheredLoss and GatheredMiner")
            assert labels is not None  # or the probabilistic loss had raised
            images, labels = gather(images), gather(labels)
        loss = loss + self.weight * self.guidance(images, labels, indices_tuple)
        return {"loss": {"losses": loss, "indices": None, "reduction_type": "already_reduced"}}

    def get_logits(self, embeddings: Tensor) -> Tensor:
        """The logits of the probabilistic loss."""
        return self.probabilistic.get_logits(embeddings)

    def warm_start(self, embeddings: Tensor, labels: Tensor) -> None:
        """Warm start of the probabilistic loss, whose proxies the guidance loss shares."""
        self.probabilistic.warm_start(embeddings, labels)

    def param_groups(self, lr: float, weight_decay: float = 0.0, **rates: float | None) -> list[dict[str, Any]]:
        """The groups of the probabilistic loss, and "guidance" with other parameters of the guidance loss, if any."""
        groups = self.probabilistic.param_groups(lr, weight_decay=weight_decay, **rates)
        others = [parameter for parameter in self.guidance.parameters() if parameter is not self.proxies]
        own = {"params": others, "name": "guidance", "lr": lr, "weight_decay": weight_decay}
        return [*groups, own] if others else groups


def _check_shareable(probabilistic: ProxyLoss, guidance: nn.Module) -> None:
    if not isinstance(probabilistic, ProxyLoss):
        raise TypeError(f"probabilistic must be a proxy loss of pml_nivmf, got {type(probabilistic).__name__}")
    if probabilistic.softmax.sparse or probabilistic.softmax.sharded:
        raise ValueError(f"a guidance loss needs all proxies and dense gradients, not {probabilistic.softmax}")
    shape, expected = getattr(getattr(guidance, "proxies", None), "shape", None), probabilistic.proxies.shape
    if shape != expected:
        raise ValueError(f"guidance needs `proxies` of shape {tuple(expected)}, as ProxyAnchorLoss has, got {shape}")
