"""Several GPUs, or several processes on a CPU: the model and the loss in DistributedDataParallel.

    torchrun --nproc_per_node=2 examples/08_distributed.py             # proxies on every rank
    torchrun --nproc_per_node=2 examples/08_distributed.py --sharded   # each rank owns half of the classes
    python examples/08_distributed.py                                  # one process

Gradients are those of one process with the batches of all ranks joined. Runs in seconds on a CPU. For experiments
there is nothing to write: torchrun --nproc_per_node=2 -m pml_nivmf run glyphs
"""

import argparse
import os

import torch
import torch.distributed as dist
from pytorch_metric_learning.losses import ProxyAnchorLoss
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from pml_nivmf.losses import JointProxyLoss, NonIsotropicVMFLoss, ShardedSoftmax, whole_state_dict

CLASSES, EMBEDDING, BATCH = 20, 32, 64
RANK, RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if GPU else torch.device("cpu")


def clusters(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """40 points around each of 20 random centres, with 32 additional dimensions of noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(CLASSES).repeat_interleave(40)
    signal = torch.randn(CLASSES, 32, generator=generator)[labels] + 0.7 * torch.randn(800, 32, generator=generator)
    return torch.cat([signal, 2 * torch.randn(800, 32, generator=generator)], dim=1), labels


def make_loss(sharded: bool) -> nn.Module:
    if sharded:  # a million classes: each rank holds its share of proxies, concentrations and their optimizer state
        return NonIsotropicVMFLoss(CLASSES, EMBEDDING, softmax=ShardedSoftmax())
    # ProxyAnchor compares each proxy with all images of the batch: it has to see those of the other ranks
    guidance = ProxyAnchorLoss(CLASSES, EMBEDDING)
    return JointProxyLoss(NonIsotropicVMFLoss(CLASSES, EMBEDDING), guidance, gather_guidance=True)


def parallel(module: nn.Module) -> nn.Module:
    return DistributedDataParallel(module) if RANKS > 1 else module


def train(sharded: bool) -> nn.Module:
    torch.manual_seed(0)
    model, loss = nn.Linear(64, EMBEDDING).to(DEVICE), make_loss(sharded).to(DEVICE)
    optimizer = torch.optim.Adam([{"params": model.parameters(), "lr": 1e-2}, *loss.param_groups(1e-2)])
    data = TensorDataset(*clusters(seed=0))
    sampler = DistributedSampler(data, RANKS, RANK)
    loader = DataLoader(data, BATCH // RANKS, sampler=sampler, drop_last=True)  # ranks need batches of one size
    parallel_model, parallel_loss = parallel(model), parallel(loss)
    torch.manual_seed(RANK)  # Monte-Carlo noise of its own for each rank
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for features, labels in loader:
            optimizer.zero_grad()
            parallel_loss(parallel_model(features.to(DEVICE)), labels.to(DEVICE)).backward()
            optimizer.step()
    if sharded:  # all ranks ask, one saves; it fits any number of ranks, and a loss without shards
        state = whole_state_dict(loss)
        if RANK == 0:
            print("proxies of all ranks:", tuple(state["proxies"].shape))
    return model


def evaluate(model: nn.Module) -> dict[str, float]:
    unseen, labels = clusters(seed=1)
    with torch.no_grad():
        embeddings = nn.functional.normalize(model(unseen.to(DEVICE)))  # retrieval is by cosine
    calculator = AccuracyCalculator(include=("precision_at_1", "mean_average_precision_at_r"))
    return calculator.get_accuracy(embeddings, labels)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="EL-nivMF on several ranks")
    parser.add_argument("--sharded", action="store_true", help="spread the classes over the ranks")
    options = parser.parse_args()
    if RANKS > 1:
        dist.init_process_group("nccl" if GPU else "gloo")
    trained = train(options.sharded)
    if RANK == 0:
        print(f"{RANKS} ranks:", "  ".join(f"{name} {value:.3f}" for name, value in evaluate(trained).items()))
        print(
            "Shown: the same program trains in one process and, with torchrun, on several ranks. Do not conclude "
            "anything about speed or accuracy: the data are artificial and small."
        )
    if RANKS > 1:
        dist.destroy_process_group()
