# %% [markdown]
# # Heads on frozen features
#
# Embed your images once with a trunk that you do not train, store the features in an .npz file, and train a linear head
# on them: minutes become seconds. Run this file with the path of your own .npz file; without a path it creates a small
# one.
#
# The .npz holds `x_train` (items, features), `y_train`, `x_test`, `y_test`, with other classes in the test part;
# optionally `views_train` (views, items, features), features of augmented training images, and `x_test_degraded`.

# %%
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from pytorch_metric_learning.losses import ProxyAnchorLoss, ProxyNCALoss
from torch import nn
from torch.utils.data import DataLoader

from pml_nivmf.data import DataSplits, FeatureArrays
from pml_nivmf.distances import ExpectedLikelihoodNivMFDistance
from pml_nivmf.losses import JointProxyLoss, NonIsotropicVMFLoss, VMFProxyLoss, warm_start_from_loader
from pml_nivmf.metrics import ProbabilisticAccuracyCalculator


def make_features(path: Path) -> Path:
    """Sixty classes, the first forty to train on: 16 informative axes, hidden among 48 noisy ones by a rotation."""
    generator = np.random.default_rng(0)
    rotation = np.linalg.qr(generator.normal(size=(64, 64)))[0]
    labels = np.repeat(np.arange(60), 20)
    signal = generator.normal(size=(60, 16))[labels] + 0.5 * generator.normal(size=(len(labels), 16))
    features = np.hstack([signal, 2 * generator.normal(size=(len(labels), 48))]) @ rotation
    train = labels < 40
    parts = {"x_train": features[train], "y_train": labels[train], "x_test": features[~train], "y_test": labels[~train]}
    np.savez(path, **parts)
    return path


given = [argument for argument in sys.argv[1:] if argument.endswith(".npz")]
npz = Path(given[0]) if given else make_features(Path(tempfile.mkdtemp()) / "features.npz")

# %% [markdown]
# ## Three parts with different classes
#
# `FeatureArrays` holds a quarter of the training classes out for validation, so that nothing is chosen on the test
# classes, and brings every feature to mean 0 and deviation 1.

# %%
data = FeatureArrays(npz)
print(f"{npz.name}: {data.num_classes} classes to train on, {data.input_shape[0]} features")

# %% [markdown]
# ## Train and evaluate
#
# PML's losses and ours start alike: proxies at class means, with the same learning rate. ProxyAnchor's usual α = 32 is
# made for long trainings; a softer one learns faster.


# %%
def train(loss: nn.Module, data: DataSplits, size: int, lr: float = 1e-2, epochs: int = 5) -> nn.Linear:
    torch.manual_seed(0)
    head = nn.Linear(data.input_shape[0], size)
    warm_start_from_loader(loss, head, DataLoader(data.train_plain, batch_size=256))
    ours = hasattr(loss, "param_groups")
    groups = loss.param_groups(lr, proxy_lr=0.1) if ours else [{"params": loss.parameters(), "lr": 0.1}]
    optimizer = torch.optim.Adam([{"params": head.parameters(), "lr": lr}, *groups])
    for _ in range(epochs):
        for features, labels in DataLoader(data.train, batch_size=64, shuffle=True):
            optimizer.zero_grad()
            loss(head(features), labels).backward()
            optimizer.step()
    return head


@torch.no_grad()
def recalls(head: nn.Module, data: DataSplits) -> str:
    calculator = ProbabilisticAccuracyCalculator(include=("recall_at_1",))
    shown = []
    for name in ("validation", "test"):
        part = getattr(data, name)
        features = torch.stack([features for features, _ in part])
        shown.append(f"{name} {calculator.get_accuracy(head(features), part.labels)['recall_at_1']:.3f}")
    return ", ".join(shown)


# %%
size = 32
classes = data.num_classes
candidates = {
    "ProxyNCA": ProxyNCALoss(classes, size, softmax_scale=8),
    "ProxyAnchor": ProxyAnchorLoss(classes, size, alpha=8),
    "EL-vMF": VMFProxyLoss(classes, size),
    "EL-nivMF": NonIsotropicVMFLoss(classes, size),
    "EL-nivMF, 5 samples": NonIsotropicVMFLoss(
        classes, size, distance=ExpectedLikelihoodNivMFDistance(n_samples=5, estimator="monte_carlo")
    ),
    "PANC + EL-nivMF": JointProxyLoss(NonIsotropicVMFLoss(classes, size), ProxyAnchorLoss(classes, size, alpha=8)),
}
print(f"{'Recall@1, untrained features':<30} {recalls(nn.Identity(), data)}")
for name, loss in candidates.items():
    print(f"{name:<30} {recalls(train(loss, data, size), data)}")

# %% [markdown]
# ## What to conclude, and what not

# %%
print(
    "Shown: a head on stored features trains in seconds; validation classes are there to choose settings. "
    "Do not conclude which loss is better: the features are artificial unless you gave a file, there is one seed, and "
    "the losses are not tuned with equal effort."
)

# %% [markdown]
# ## The same from the command line
#
# This adds several seeds, intervals, early stopping and a table:
#
# ```
# pml-nivmf compare table1/features dataset.FeatureArrays.npz=PATH evaluation.select_on=validation
# ```
