# %% [markdown]
# # A plain PyTorch loop
#
# No trainer, no configuration: a model, a loss, an optimizer. Comments explain what is specific to these losses.

# %%
import torch
from torch import nn

from pml_nivmf.losses import NonIsotropicVMFLoss
from pml_nivmf.metrics import ProbabilisticAccuracyCalculator

torch.manual_seed(0)
CLASSES, EMBEDDING = 20, 32


def clusters(spread: float = 0.7) -> tuple[torch.Tensor, torch.Tensor]:
    """Forty points around each of twenty random centres, with 32 additional dimensions of noise."""
    labels = torch.arange(CLASSES).repeat_interleave(40)
    signal = torch.randn(CLASSES, 32)[labels] + spread * torch.randn(len(labels), 32)
    return torch.cat([signal, 2 * torch.randn(len(labels), 32)], dim=1), labels


features, labels = clusters()
model = nn.Linear(64, EMBEDDING)  # stands for trunk and head

# %% [markdown]
# ## The loss and its start
#
# `warm_start` points each proxy at the mean of its class and sets the scale of the embeddings, so that their norms
# start as useful concentrations. Without it, the first training batch sets the scale and proxies start at random.

# %%
loss_func = NonIsotropicVMFLoss(num_classes=CLASSES, embedding_size=EMBEDDING)
loss_func.warm_start(model(features), labels)
print(f"raw norm {model(features).norm(dim=1).mean():.2f}, multiplied by {loss_func.embedding_scale:.1f} in the loss")

# %% [markdown]
# ## The loop
#
# One optimizer holds the model and the loss: `param_groups` lists the loss's parameters with rates of their own.
# Pass raw embeddings: their norm says how certain the model is, so do not normalise them before the loss.

# %%
optimizer = torch.optim.Adam([{"params": model.parameters(), "lr": 1e-2}, *loss_func.param_groups(1e-2)])
for epoch in range(1, 6):
    total = 0.0
    for batch in torch.randperm(len(features)).split(64):
        loss = loss_func(model(features[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(batch)
    print(f"epoch {epoch}: loss {total / len(features):.3f}")

# %% [markdown]
# ## What was learned
#
# The proxies, one concentration per class and dimension, and the temperature. `get_logits` classifies known classes;
# retrieval of unknown ones goes by the cosine of the embeddings.

# %%
concentration = loss_func.concentration.detach()  # (classes, dimensions)
print(f"concentrations from {concentration.min():.1f} to {concentration.max():.1f}")
print(f"temperature {loss_func.temperature.item():.3f}")
unseen, unseen_labels = clusters()  # twenty other classes
with torch.no_grad():
    accuracy = (loss_func.get_logits(model(features)).argmax(1) == labels).float().mean()
    scores = ProbabilisticAccuracyCalculator(include=("recall_at_1",)).get_accuracy(model(unseen), unseen_labels)
print(f"training accuracy {accuracy:.3f}, Recall@1 of unseen classes {scores['recall_at_1']:.3f}")

# %% [markdown]
# ## Saving
#
# The loss is a module: proxies, concentrations, temperature and embedding scale are all in its state_dict.

# %%
saved = {"model": model.state_dict(), "loss": loss_func.state_dict()}
again = NonIsotropicVMFLoss(num_classes=CLASSES, embedding_size=EMBEDDING)
again.load_state_dict(saved["loss"])
print(", ".join(saved["loss"]))

# %% [markdown]
# ## What to conclude, and what not

# %%
print(
    "Shown: raw embeddings go into the loss, and its parameters into the optimizer and the checkpoint. "
    "Do not conclude from these scores how accurate the loss is: the data are artificial, and nothing is tuned."
)
