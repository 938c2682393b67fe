# %% [markdown]
# # Your own folder of images
#
# All you need is a folder with one folder of images for each class. This page makes such a folder, trains on it with
# the command `pml-nivmf run` and retrieves images with the trained model.

# %%
import json
import random
import tempfile
from pathlib import Path

import torch
from PIL import Image, ImageDraw

from pml_nivmf import cli
from pml_nivmf.experiments import load_run

work = Path(tempfile.mkdtemp())

# %% [markdown]
# ## A folder
#
# Coloured polygons; a class defines corners and colours, an image its position, size and rotation. With your
# own images, skip this cell.


# %%
def draw(corners: int, colour: str, ground: str) -> Image.Image:
    image = Image.new("RGB", (32, 32), ground)
    place = (random.uniform(12, 20), random.uniform(12, 20), random.uniform(7, 11))  # x, y, radius
    ImageDraw.Draw(image).regular_polygon(place, corners, rotation=random.randrange(360), fill=colour)
    return image


random.seed(0)
pairs = [("red", "white"), ("navy", "white"), ("green", "black"), ("gold", "black"), ("white", "gray"), ("red", "navy")]
for colour, ground in pairs:
    for corners in (3, 4, 6, 12):
        folder = work / "images" / f"{colour}-{corners}-on-{ground}"
        folder.mkdir(parents=True)
        for number in range(8):
            draw(corners, colour, ground).save(folder / f"{number}.png")
print(f"{len(list((work / 'images').iterdir()))} class folders")

# %% [markdown]
# ## An experiment
#
# An experiment is a YAML file that names variants (`pml-nivmf list` shows them) and says what differs. Half of the
# classes become the unseen test classes. So few others are all for training, and the last epoch is tested; with more
# classes leave `evaluation` out. For photographs take `pml-nivmf train FOLDER`.

# %%
experiment = work / "polygons.yaml"
experiment.write_text(
    f"""
description: Coloured polygons
groups: {{dataset: image_folder, model: conv_net, sampler: shuffle, optimizers: from_scratch, loss: el_nivmf}}
dataset: {{ImageFolder: {{root: {work / "images"}, crop_size: 28, resize: 28}}}}
model: {{embedding_size: 32}}
evaluation: {{select_on: last}}
general: {{epochs: 5, batch_size: 32, run_dir: {work / "run"}}}
"""
)
print(experiment.read_text())

# %% [markdown]
# ## Training
#
# In a shell this is `pml-nivmf run polygons.yaml`, and overrides like `general.epochs=20` or `loss=proxy_anchor`.

# %%
if cli.main(["run", str(experiment)]) != 0:
    raise SystemExit("the run failed")
summary = json.loads((work / "run" / "summary.json").read_text())
print(f"Recall@1 of unseen classes: {summary['test']['recall_at_1']:.3f}")

# %% [markdown]
# ## Using the model
#
# `load_run` returns model, transform and loss with the weights of the tested epoch. Each query finds
# its nearest neighbour among all other test images, by cosine; the norm of its embedding is the model's certainty.
# [10_enrol_new_classes](10_enrol_new_classes.py) shows a better way to recognise new classes.

# %%
run = load_run(work / "run")
test = run.parts.data.test
names = [test.class_names[label] for label in test.labels.tolist()]
with torch.no_grad():
    embeddings = run.embedder(run.trunk(torch.stack([image for image, _ in test])))
directions = torch.nn.functional.normalize(embeddings)
similarity = (directions @ directions.T).fill_diagonal_(-1)
for query in range(0, len(names), 16):
    nearest = int(similarity[query].argmax())
    print(f"{names[query]:<18} -> {names[nearest]:<18} certainty {embeddings[query].norm():.0f}")

# %% [markdown]
# ## What to conclude, and what not

# %%
print(
    "Shown: the way from a folder of images to a trained model, and how to load and use it. "
    "Do not conclude how accurate the loss is: twelve classes are few to learn from, and few images are tested."
)
