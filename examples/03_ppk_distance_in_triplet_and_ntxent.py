# %% [markdown]
# # Probability product kernels in triplet and NT-Xent losses
#
# The distances of this package are PML distances: they go wherever PML takes `distance=`, in pair and triplet losses,
# miners and nearest-neighbour search. They read a raw embedding as a von Mises-Fisher distribution (vMF): its direction
# is the mean direction, its norm the concentration, that is, the certainty.

# %%
import torch
from pytorch_metric_learning import losses, miners
from pytorch_metric_learning.distances import CosineSimilarity
from pytorch_metric_learning.utils.inference import CustomKNN
from torch import nn

from pml_nivmf.distances import BhattacharyyaDistance, ExpectedLikelihoodDistance
from pml_nivmf.metrics import ProbabilisticAccuracyCalculator

torch.manual_seed(0)

# %% [markdown]
# ## What the norm does
#
# Two embeddings 60° apart. The cosine ignores their norms. Bhattacharyya (order ½) is 0 for equal
# distributions and small where at least one of the two is vague. The expected likelihood (order 1) also rewards
# certainty: the more concentrated a distribution is, the closer it is to itself. Units are nats.

# %%
directions = torch.zeros(2, 32)
directions[0, 0], directions[1, 0], directions[1, 1] = 1.0, 0.5, 0.75**0.5
bhattacharyya, likelihood = BhattacharyyaDistance(), ExpectedLikelihoodDistance()
print("  norm   cosine   Bhattacharyya        expected likelihood")
print("                  other    itself      other    itself")
for norm in (2.0, 32.0, 128.0):
    pair = norm * directions
    cosine = CosineSimilarity()(pair)[0, 1]
    values = [distance(pair)[0, column].item() for distance in (bhattacharyya, likelihood) for column in (1, 0)]
    print(f"{norm:6.0f} {cosine:8.2f} {values[0]:9.2f} {values[1]:8.2f} {values[2]:11.2f} {values[3]:8.2f}")

# %% [markdown]
# ## Training
#
# Pair losses have no `embedding_scale`: the head itself has to give norms of the right size, M and more in M
# dimensions. `train` scales it once. Margins and temperatures are in nats: distances of concentrated vMFs are
# tens of nats, so a margin of 5 or a temperature of 4 corresponds to about 0.1 for a cosine.

# %%
CLASSES, EMBEDDING = 20, 32
labels = torch.arange(CLASSES).repeat_interleave(20)


def clusters() -> torch.Tensor:
    """Twenty points around each of twenty random centres, with 32 additional dimensions of noise."""
    signal = torch.randn(CLASSES, 32)[labels] + 0.7 * torch.randn(len(labels), 32)
    return torch.cat([signal, 2 * torch.randn(len(labels), 32)], dim=1)


features, unseen = clusters(), clusters()


def train(loss_func: nn.Module, miner: nn.Module | None = None) -> nn.Linear:
    torch.manual_seed(1)
    head = nn.Linear(64, EMBEDDING)
    with torch.no_grad():
        factor = 2 * EMBEDDING / head(features).norm(dim=1).mean()
        for parameter in head.parameters():
            parameter.mul_(factor)
    optimizer = torch.optim.Adam(head.parameters(), lr=0.1)
    for _ in range(30):
        batch = torch.randperm(len(labels))[:80]
        embeddings = head(features[batch])
        hard = miner(embeddings, labels[batch]) if miner else None
        loss = loss_func(embeddings, labels[batch], hard)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return head


def recall(head: nn.Linear) -> float:
    calculator = ProbabilisticAccuracyCalculator(include=("recall_at_1",))  # by cosine
    return calculator.get_accuracy(head(unseen).detach(), labels)["recall_at_1"]


# %%
triplet = losses.TripletMarginLoss(margin=5.0, distance=bhattacharyya)
mining = miners.TripletMarginMiner(margin=5.0, distance=bhattacharyya, type_of_triplets="semihard")
heads = {
    "untrained": nn.Linear(64, EMBEDDING),
    "triplet, Bhattacharyya": train(triplet, mining),
    "NT-Xent, Bhattacharyya": train(losses.NTXentLoss(temperature=4.0, distance=bhattacharyya)),
    "NT-Xent, expected likelihood": train(losses.NTXentLoss(temperature=4.0, distance=likelihood)),
}
for name, head in heads.items():
    print(f"{name:<30} Recall@1 of unseen classes {recall(head):.3f}, mean norm {head(unseen).norm(dim=1).mean():.1f}")

# %% [markdown]
# ## Searching with the same distance
#
# PML's `CustomKNN` takes any distance: neighbours are then ranked by how much distributions overlap, not by the angle
# alone.

# %%
embeddings = heads["NT-Xent, Bhattacharyya"](unseen).detach()
distances, neighbours = CustomKNN(bhattacharyya)(embeddings[:3], k=2, reference=embeddings)
for query, (near, far) in enumerate(zip(neighbours.tolist(), distances.tolist(), strict=True)):
    print(f"query {query}: itself at {far[0]:.2f}, nearest other item {near[1]} at {far[1]:.2f}")

# %% [markdown]
# ## What to conclude, and what not

# %%
print(
    "Shown: distances between distributions work in PML's losses, miners and search, with margins in nats. "
    "Do not conclude which loss or distance is better: nothing is tuned, and there is one seed."
)
