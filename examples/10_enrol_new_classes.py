# %% [markdown]
# # Enrol classes that training never had
#
# A model is trained on some classes and used on others. Here it is trained on Latin letters and digits; Greek and
# Cyrillic letters are enrolled afterwards, from five images each. A gallery answers with a calibrated probability, or
# refuses.

# %%
import tempfile
from pathlib import Path

import torch
from pytorch_metric_learning.losses import ProxyNCALoss
from pytorch_metric_learning.utils.inference import InferenceModel
from torch.utils.data import DataLoader, Subset

from pml_nivmf.data import Glyphs
from pml_nivmf.inference import ClassGallery, WithinClassShape
from pml_nivmf.metrics import certainty_auroc, draw_gallery, posterior_metrics
from pml_nivmf.models import ConvNet, EmbeddingHead

# %% [markdown]
# ## A model
#
# Any model will do, trained with any loss. This one learns for a few seconds with PML's ProxyNCA.

# %%
torch.manual_seed(0)
data = Glyphs(instances=12)
trunk = ConvNet(in_channels=1, width=16)
head = EmbeddingHead(trunk.num_features, 64)
loss_func = ProxyNCALoss(data.num_classes, 64, softmax_scale=4)
groups = [{"params": [*trunk.parameters(), *head.parameters()]}, {"params": loss_func.parameters(), "lr": 0.1}]
optimizer = torch.optim.Adam(groups, lr=6e-3)
for _ in range(4):
    for images, labels in DataLoader(data.train, batch_size=64, shuffle=True):
        optimizer.zero_grad()
        loss_func(head(trunk(images)), labels).backward()
        optimizer.step()
model = InferenceModel(trunk, head)

# %% [markdown]
# ## Enrol
#
# `add_dataset` embeds images with PML's InferenceModel and keeps the norms of the embeddings. `fit` learns how
# concentrated classes are, by judging every enrolled image by the others. The prior, from validation classes, helps
# where classes have few images; with one image each it is needed.

# %%
prior = ClassGallery()  # only to embed the validation classes
prior.add_dataset(model, data.validation)
shape = WithinClassShape.from_embeddings(prior.embeddings, prior.classes)

enrolled, queries = draw_gallery(data.test.labels, shots=5, seed=0)
gallery = ClassGallery(prior=shape)
gallery.add_dataset(model, Subset(data.test, enrolled.tolist()))
gallery.fit()
print(f"{len(gallery)} images of {len(gallery.labels)} new classes")

# %% [markdown]
# ## Probabilities
#
# A row for each query, a column for each enrolled label. The nearest neighbour has no probability to offer.

# %%
images = torch.stack([data.test[row][0] for row in queries.tolist()])
labels = data.test.labels[queries]
embeddings = head(trunk(images)).detach()
metrics = posterior_metrics(gallery(embeddings), [gallery.labels.index(label) for label in labels.tolist()])
cosines = torch.nn.functional.normalize(embeddings) @ torch.nn.functional.normalize(gallery.embeddings).T
nearest = torch.tensor(gallery.labels)[gallery.classes[cosines.argmax(1)]]
print(f"nearest neighbour: {float((nearest == labels).float().mean()):.1%} right")
print(f"gallery: {metrics['accuracy']:.1%} right, calibration error {metrics['ece']:.3f}, AUROC {metrics['auroc']:.2f}")

# %% [markdown]
# ## Answers, refusals and sets
#
# `identify` answers where it expects 95% of its answers to be right. It names the enrolled images that support an
# answer. `label_sets` returns as many labels as are needed to contain the right one in 90% of the cases.

# %%
answers = gallery.identify_images(model, images, precision=0.95)
given = [a.label == label for a, label in zip(answers, labels.tolist(), strict=True) if a.label is not None]
print(f"{len(given)} of {len(answers)} queries answered, {sum(given) / max(1, len(given)):.1%} of them right")
print(answers[0])
sets = gallery.label_sets(embeddings, coverage=0.9)
covered = [label in labels_of_query for label, labels_of_query in zip(labels.tolist(), sets, strict=True)]
print(f"sets of {sum(map(len, sets)) / len(sets):.1f} labels contain the right one in {sum(covered) / len(sets):.1%}")

# %% [markdown]
# ## Unknown classes
#
# Queries of classes that are not enrolled should be refused. `known` is the probability that a class is enrolled,
# learned by leaving whole classes out. If only Greek letters are enrolled, how well are Cyrillic ones told from them?

# %%
for label in gallery.labels[94:]:  # Cyrillic letters
    gallery.remove(label)
answers = gallery.fit().identify(embeddings)
is_enrolled = torch.isin(labels, torch.tensor(gallery.labels))
cosines = torch.nn.functional.normalize(embeddings) @ torch.nn.functional.normalize(gallery.embeddings).T
print(f"AUROC of known against unknown: {certainty_auroc([answer.known for answer in answers], is_enrolled):.3f}")
print(f"... by the largest cosine: {certainty_auroc(cosines.amax(1), is_enrolled):.3f}")

# %% [markdown]
# ## Keep it
#
# New images and classes can be added at any time, without fitting again.

# %%
path = Path(tempfile.mkdtemp()) / "gallery.safetensors"
gallery.save(path)
restored = ClassGallery.load(path)
restored.add(embeddings[:1], ["one more"])
print(f"{path.name}: {len(restored)} images, the first query is now {restored.identify(embeddings[:1])[0].best!r}")

# %% [markdown]
# ## What to conclude, and what not

# %%
print(
    "Shown: a gallery turns a few images per class into probabilities, refusals and sets of labels. "
    "Do not conclude how well it works on your images: this model was trained for seconds, and there is one seed. "
    "Precision and coverage hold approximately, and only for queries like the enrolled images; refusing unknown "
    "classes is the hardest part: compare it with the largest cosine on your data, as above."
)

# %% [markdown]
# ## The same from the command line
#
# With a trained run, a folder that has one folder of images for each new class, and images to identify:
#
# ```
# pml-nivmf enrol RUN FOLDER --to gallery.safetensors
# pml-nivmf identify gallery.safetensors IMAGES… --html sheet.html --csv table.csv
# ```
