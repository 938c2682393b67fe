# %% [markdown]
# # Uncertainty at inference
#
# The norm of an embedding says how certain the model is of what it sees. Here a model retrieves characters it has never
# seen from blurred queries, ranks its answers by certainty, and refuses those of which too many would be wrong. It runs
# in seconds on a CPU, with few small images and three epochs. Do not conclude from it how accurate the loss is or how
# good its certainty is: both change with longer training, other data, the seed and the number of threads.

# %%
import torch
from pytorch_metric_learning.utils.inference import InferenceModel
from scipy.stats import spearmanr
from torch import nn

from pml_nivmf.data import DegradedItems, Glyphs
from pml_nivmf.losses import NonIsotropicVMFLoss
from pml_nivmf.metrics import certainty, certainty_auroc, recall_at_coverage, threshold_for_precision
from pml_nivmf.models import ConvNet, EmbeddingHead

torch.manual_seed(0)
STRONGEST_BLUR, EMBEDDING, EPOCHS = 0.8, 64, 3

# %% [markdown]
# ## Data
#
# Rendered characters: Latin ones to train, Greek and Cyrillic ones, unseen, to retrieve. `DegradedItems` blurs each
# image by a different strength, so that some images are hard to recognise.


# %%
def blurred(items, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (n, 1, 24, 24) and their strengths (n,)."""
    strength = STRONGEST_BLUR * torch.rand(len(items), generator=torch.Generator().manual_seed(seed))
    return stacked(DegradedItems(items, "blur", strength, seed)), strength


def stacked(items) -> torch.Tensor:
    return torch.stack([items[index][0] for index in range(len(items))])


splits = Glyphs(size=24, instances=8)
images = torch.cat([stacked(splits.train_plain), blurred(splits.train_plain, seed=0)[0]])
labels = splits.train_plain.labels.repeat(2)

# %% [markdown]
# ## Training
#
# The model is trained on clean and blurred images, so that it can learn to be less certain of blurred ones. There is no
# target for the certainty: the loss is high where the model is certain and wrong.

# %%
trunk, embedder = ConvNet(width=32), EmbeddingHead(64, EMBEDDING)
model = nn.Sequential(trunk, embedder)
loss_func = NonIsotropicVMFLoss(splits.num_classes, EMBEDDING)
rates = loss_func.param_groups(3e-3, proxy_lr=0.1, concentration_lr=1e-3)
optimizer = torch.optim.Adam([{"params": model.parameters(), "lr": 3e-3}, *rates])
for epoch in range(1, EPOCHS + 1):
    total = 0.0
    for batch in torch.randperm(len(images)).split(64):
        optimizer.zero_grad()
        loss = loss_func(model(images[batch]), labels[batch])
        loss.backward()
        optimizer.step()
        total += loss.item() * len(batch)
    print(f"epoch {epoch}: loss {total / len(images):.2f}")

# %% [markdown]
# ## Retrieval with PML's InferenceModel
#
# Every other test image goes, clean, into the gallery; the rest are blurred queries. Retrieval is by cosine, so the
# `InferenceModel` normalises. Certainty needs the norms: a second one, for the same network, does not.

# %%
in_gallery = torch.arange(len(splits.test)) % 2 == 0
gallery, gallery_labels = stacked(splits.test)[in_gallery], splits.test.labels[in_gallery]
queries, strength = (values[~in_gallery] for values in blurred(splits.test, seed=1))
query_labels = splits.test.labels[~in_gallery]

retrieval = InferenceModel(trunk, embedder)
retrieval.train_knn(gallery, batch_size=256)
_, nearest = retrieval.get_nearest_neighbors(queries, k=1)
correct = gallery_labels[nearest[:, 0].cpu()] == query_labels

raw = InferenceModel(trunk, embedder, normalize_embeddings=False)
how_certain = certainty(raw.get_embeddings(queries)).cpu()

# %% [markdown]
# ## Is this certainty worth anything?
#
# Measure it before you use it. The AUROC is the chance that a right answer is more certain than a wrong one; ½ would be
# useless. The rank correlation says whether stronger blur makes the model less certain.

# %%
print(f"{100 * correct.double().mean():.0f}% of {len(queries)} answers are right")
print(f"AUROC of the norm for right answers: {certainty_auroc(how_certain, correct):.2f}")
print(f"rank correlation of norm and strength of the blur: {spearmanr(how_certain, strength).statistic:.2f}")
for coverage, recall in recall_at_coverage(how_certain, correct, (1.0, 0.75, 0.5, 0.25)).items():
    print(f"answering the {100 * coverage:3.0f}% most certain queries: {100 * recall:.0f}% right")

# %% [markdown]
# ## Rank by certainty
#
# The queries that the model is surest of, and those that a person should check.

# %%
order = how_certain.argsort(descending=True)
for title, chosen in (("surest", order[:5]), ("least sure", order[-5:])):
    for index in chosen.tolist():
        print(f"{title}: norm {how_certain[index]:.1f}, blur {strength[index]:.2f}, right: {bool(correct[index])}")

# %% [markdown]
# ## Refuse below a threshold
#
# Half of the classes, for which we know the truth, choose the threshold for the precision we want; it is then used on
# the other half. The precision holds approximately, and only for similar data: choose the threshold on many queries,
# and check it again when the data change.

# %%
WANTED = 0.5
known = query_labels % 2 == 0
threshold = threshold_for_precision(how_certain[known], correct[known], WANTED)
answered = how_certain[~known] >= threshold
precision = correct[~known][answered].double().mean()
print(f"wanted {100 * WANTED:.0f}% right: answer where the norm is at least {threshold:.1f}")
print(f"in use: {100 * answered.double().mean():.0f}% of the queries are answered, {100 * precision:.0f}% rightly")
print(f"without refusing: {100 * correct[~known].double().mean():.0f}% rightly")

# %% [markdown]
# ## What to conclude, and what not

# %%
print(
    "Shown: how to measure a certainty, rank answers by it, and refuse below a threshold chosen on labelled queries. "
    "Do not conclude that the norm is a good certainty in general: these queries differ in blur, and the model was "
    "trained on blurred images. On clean images the similarity to the nearest neighbour predicted errors better, on "
    "all our data sets (experiment_configs/RESULTS.md)."
)
