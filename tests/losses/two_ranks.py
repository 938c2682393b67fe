"""What each of two gloo ranks computes for test_distributed: one launch for all cases, for imports take longest."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from pytorch_metric_learning import losses as pml
from pytorch_metric_learning import miners
from pytorch_metric_learning.distances import CosineSimilarity
from pytorch_metric_learning.regularizers import LpRegularizer
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pml_nivmf.losses import (
    FullSoftmax,
    GatheredLoss,
    GatheredMiner,
    JointProxyLoss,
    NonIsotropicVMFLoss,
    ShardedSoftmax,
    VMFProxyLoss,
    load_whole_state_dict,
    whole_state_dict,
)
from pml_nivmf.losses.collectives import gather_uneven

from .variants import sampled

RANKS, CLASSES, SIZE, WIDTH, BATCH = 2, 7, 5, 6, 12

Build = Callable[..., nn.Module]  # called with `softmax`, a class
OURS: dict[str, Build] = {
    "el_vmf": lambda softmax=FullSoftmax: VMFProxyLoss(CLASSES, SIZE, softmax=softmax()),
    "cosine": lambda softmax=FullSoftmax: VMFProxyLoss(CLASSES, SIZE, distance=CosineSimilarity(), softmax=softmax()),
    "el_nivmf": lambda softmax=FullSoftmax: NonIsotropicVMFLoss(
        CLASSES, SIZE, distance=sampled(3), softmax=softmax()
    ),  # with shared noise
    "in_chunks": lambda softmax=FullSoftmax: NonIsotropicVMFLoss(CLASSES, SIZE, softmax=softmax(chunk_size=2)),
    "regularised": lambda softmax=FullSoftmax: NonIsotropicVMFLoss(
        CLASSES,
        SIZE,
        concentration="shared_plus_deviation",
        weight_regularizer=LpRegularizer(),
        embedding_regularizer=LpRegularizer(),
        softmax=softmax(),
    ),
}
COUPLED: dict[str, Build] = {
    "proxy_anchor": lambda: pml.ProxyAnchorLoss(CLASSES, SIZE),
    "triplets": lambda: pml.TripletMarginLoss(),
}


def hard_triplets() -> nn.Module:
    return miners.TripletMarginMiner(type_of_triplets="hard")


def joint(gather_guidance: bool) -> JointProxyLoss:
    guidance = pml.ProxyAnchorLoss(CLASSES, SIZE)
    return JointProxyLoss(OURS["el_nivmf"](), guidance, weight=0.7, gather_guidance=gather_guidance)


def batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    features = torch.randn(BATCH, WIDTH, generator=generator, dtype=torch.float64)
    return features, torch.randint(0, CLASSES, (BATCH,), generator=generator)


def model_and_loss(build: Callable[[], nn.Module]) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(1)
    model, loss = nn.Linear(WIDTH, SIZE).double(), build().double()
    return model, loss


def sharded_like(whole: nn.Module, build: Build) -> nn.Module:
    """The same loss with classes spread over the ranks."""
    _, loss = model_and_loss(lambda: build(ShardedSoftmax))
    load_whole_state_dict(loss, whole.state_dict())
    return loss


def share_noise(loss: nn.Module, seeds: list[int]) -> None:
    """Monte-Carlo noise of equal parts of the batch by seeds: two ranks and one process draw the same."""
    distance = getattr(loss, "probabilistic", loss).distance
    if not hasattr(distance, "draw"):
        return
    draw = distance.draw

    def drawn(query: Tensor) -> Tensor:
        parts = []
        for seed, part in zip(seeds, query.chunk(len(seeds)), strict=True):
            torch.manual_seed(seed)
            parts.append(draw(part))
        return torch.cat(parts, dim=-2)

    distance.draw = drawn


def step(
    model: nn.Module,
    loss: nn.Module,
    data: Sequence[Tensor],
    seeds: list[int],
    miner: Callable | None = None,
    wrap: Callable[[nn.Module], nn.Module] = lambda module: module,
    coupled: bool = False,
) -> dict[str, Tensor]:
    """Value, gradients and embedding scale of one step."""
    share_noise(loss, seeds)
    parallel_model, parallel_loss = wrap(model), wrap(GatheredLoss(loss) if coupled else loss)
    embeddings = parallel_model(data[0])
    value = parallel_loss(embeddings, data[1], None if miner is None else miner(embeddings, data[1]))
    value.backward()
    modules = {"model": model, "loss": loss}.items()
    results = {f"{name}.{key}": p.grad.clone() for name, module in modules for key, p in module.named_parameters()}
    scale = torch.as_tensor(getattr(loss, "embedding_scale", 1.0))
    return results | {"value": value.detach().clone(), "scale": scale}


def alone(build: Callable[[], nn.Module], miner: Callable | None = None) -> dict[str, Tensor]:
    """What one process computes on the joined batch."""
    return step(*model_and_loss(build), batch(0), [100, 101], miner)


def _together(build: Build, sharded: bool = False, **options: object) -> dict[str, Tensor]:
    """What a rank computes on its half of the batch; gradients of all classes."""
    model, loss = model_and_loss(build)
    loss = sharded_like(loss, build) if sharded else loss
    data = _own(batch(0))
    results = step(model, loss, data, [100 + dist.get_rank()], wrap=_wrapped, **options)
    dist.all_reduce(results["value"])
    results["value"] /= RANKS
    if sharded:
        lengths = [len(shard) for shard in loss.softmax.shards(CLASSES)]
        for name in loss.class_parameters():
            results[f"loss.{name}"] = torch.cat(gather_uneven(results[f"loss.{name}"], lengths))
        results["logits"] = loss.get_logits(model(data[0])).detach()
    return results


def _wrapped(module: nn.Module) -> nn.Module:
    return DistributedDataParallel(module) if any(p.requires_grad for p in module.parameters()) else module


def _own(tensors: tuple[Tensor, ...]) -> list[Tensor]:
    return [tensor.chunk(RANKS)[dist.get_rank()] for tensor in tensors]


def train(model: nn.Module, loss: nn.Module, own: Callable = tuple, wrap: Callable = lambda module: module) -> None:
    """Warm start and two steps of Adam."""
    loss.warm_start(model(batch(5)[0]), batch(5)[1])
    optimizer = torch.optim.Adam([*loss.param_groups(1e-2), {"params": model.parameters(), "lr": 1e-2}])
    parallel_model, parallel_loss = wrap(model), wrap(loss)
    for number in (1, 2):
        features, labels = own(batch(number))
        optimizer.zero_grad()
        parallel_loss(parallel_model(features), labels).backward()
        optimizer.step()


def _sharded_training() -> dict[str, dict]:
    model, whole = model_and_loss(OURS["in_chunks"])
    loss = sharded_like(whole, OURS["in_chunks"])
    train(model, loss, _own, _wrapped)
    return {"loss": whole_state_dict(loss), "model": model.state_dict()}


# What each of two ranks and what one process computes, by case.
CASES = {name: (partial(_together, build), partial(alone, build)) for name, build in OURS.items()}
CASES |= {
    f"{name}, sharded": (partial(_together, build, sharded=True), partial(alone, build))
    for name, build in OURS.items()
    if name != "regularised"
}
CASES |= {name: (partial(_together, build, coupled=True), partial(alone, build)) for name, build in COUPLED.items()}
CASES |= {
    "joint": (partial(_together, partial(joint, True)), partial(alone, partial(joint, False))),
    "mined in the joined batch": (
        lambda: _together(COUPLED["triplets"], coupled=True, miner=GatheredMiner(hard_triplets())),
        lambda: alone(COUPLED["triplets"], hard_triplets()),
    ),
}


def work(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    results = {name: together() for name, (together, _) in CASES.items()}
    torch.manual_seed(3)
    results["initial rows"] = {"proxies": OURS["el_vmf"](ShardedSoftmax).proxies.detach()}
    results["training"] = _sharded_training()
    torch.save(results, folder / f"rank-{rank}.pt")
    dist.destroy_process_group()
