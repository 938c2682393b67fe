"""A probabilistic proxy loss regularised by another proxy loss on the same proxies."""

import math
from typing import Any

import torch
from pytorch_metric_learning.losses import BaseMetricLossFunction
from torch import Tensor, nn

from ..functional.pairing import detach_zero_rows
from .base import ProxyLoss
from .collectives import gather


class JointProxyLoss(BaseMetricLossFunction):
    r"""Sum of a probabilistic proxy loss and a guidance loss that share one proxy tensor:

        L = L_probabilistic(z) + ω·L_guidance(z)

    With `NonIsotropicVMFLoss` and PML's `ProxyAnchorLoss` it is the paper's PANC + EL-nivMF. The guidance loss's own
    proxies are replaced by the probabilistic loss's.

    Args:
        probabilistic: one of this package's proxy losses.
        guidance: a PML loss with `.proxies` of the same shape, such as ProxyAnchorLoss or ProxyNCALoss.
        weight: ω ≥ 0.
        gather_guidance: in a distributed training, the guidance loss sees the images of all ranks, for it may couple
            them, as ProxyAnchorLoss does; the probabilistic loss sees each rank's own. Then wrap the whole in
            DistributedDataParallel.
        **kwargs: PML's `embedding_regularizer`, `collect_stats`, … Give reducers to the two losses themselves.

    Needs an optimizer. Reducer input: the two losses reduce themselves; the sum arrives already reduced.
    """

    def __init__(
        self,
        probabilistic: ProxyLoss,
        guidance: nn.Module,
        weight: float = 1.0,
        gather_guidance: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if not isinstance(probabilistic, ProxyLoss):
            raise TypeError(f"probabilistic must be a proxy loss of pml_nivmf, got {type(probabilistic).__name__}")
        _check_shareable(probabilistic.proxies, guidance)
        if probabilistic.sharded:
            raise ValueError("sharded=True and a guidance loss do not go together: it needs all proxies on one device")
        if probabilistic.sparse:
            raise ValueError("sparse=True and a guidance loss do not go together: it has gradients for all proxies")
        if not 0 <= weight < math.inf:
            raise ValueError(f"weight must be a number of at least 0, got {weight}")
        self.probabilistic = probabilistic
        self.guidance = guidance
        self._tie()
        self.register_load_state_dict_post_hook(JointProxyLoss._tie)  # loading with assign=True unties
        self.weight = float(weight)
        self.gather_guidance = bool(gather_guidance)
        self.add_to_recordable_attributes(list_of_names=["weight"], is_stat=False)

    def _tie(self, _incompatible_keys: Any = None) -> None:
        self.guidance.proxies = self.probabilistic.proxies

    @property
    def proxies(self) -> nn.Parameter:
        return self.probabilistic.proxies

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: Any = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        accepted = self.probabilistic.accept(embeddings)
        if ref_emb is embeddings and ref_labels is labels:
            ref_emb = ref_labels = None
        with torch.autocast(accepted.device.type, enabled=False):
            return super().forward(accepted, labels, indices_tuple, ref_emb, ref_labels)

    def compute_loss(
        self, embeddings: Tensor, labels: Tensor | None, indices_tuple: Any, ref_emb: Tensor, ref_labels: Tensor | None
    ) -> dict[str, dict[str, Any]]:
        references = {} if ref_emb is embeddings else {"ref_emb": ref_emb, "ref_labels": ref_labels}
        loss = self.probabilistic(embeddings, labels, indices_tuple, **references)
        # PML's losses cast their proxies to the embeddings' dtype, for good: never let them see another one.
        guiding = detach_zero_rows(embeddings.to(self.proxies.dtype))
        if self.gather_guidance:
            assert labels is not None  # the probabilistic loss has asked for them
            guiding, labels = gather(guiding), gather(labels)
        loss = loss + self.weight * self.guidance(guiding, labels, indices_tuple)
        return {"loss": {"losses": loss, "indices": None, "reduction_type": "already_reduced"}}

    def get_logits(self, embeddings: Tensor) -> Tensor:
        """The probabilistic loss's logits."""
        return self.probabilistic.get_logits(embeddings)

    def warm_start(self, embeddings: Tensor, labels: Tensor) -> None:
        """Warm start of the probabilistic loss; the guidance loss shares its proxies."""
        self.probabilistic.warm_start(embeddings, labels)

    def param_groups(self, lr: float, guidance_lr: float | None = None, **rates: float | None) -> list[dict[str, Any]]:
        """The probabilistic loss's groups, and the guidance loss's own parameters, if any, at `guidance_lr` or lr."""
        groups = self.probabilistic.param_groups(lr, **rates)
        own = [parameter for parameter in self.guidance.parameters() if parameter is not self.proxies]
        if own:
            groups.append({"params": own, "name": "guidance", "lr": lr if guidance_lr is None else guidance_lr})
        return groups


def _check_shareable(proxies: nn.Parameter, guidance: nn.Module) -> None:
    theirs = getattr(guidance, "proxies", None)
    if not isinstance(theirs, nn.Parameter):
        name = type(guidance).__name__
        raise TypeError(f"guidance must have a parameter `proxies` to share, as ProxyAnchorLoss has: {name} has none")
    if theirs.shape != proxies.shape:
        raise ValueError(
            f"proxies cannot be shared: guidance has shape {tuple(theirs.shape)}, the probabilistic loss "
            f"{tuple(proxies.shape)}; build both with the same num_classes and embedding_size"
        )
