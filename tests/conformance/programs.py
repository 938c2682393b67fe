"""PML's trainers, testers, reducers, regularizers and wrappers around any of our losses, on a toy problem."""

import contextlib
import io
from collections.abc import Callable

import torch
from pytorch_metric_learning import losses as pml_losses
from pytorch_metric_learning import reducers, regularizers, testers, trainers
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector
from torch.utils.data import TensorDataset

from .catalogue import classes_of

CLASSES, FEATURES, SIZE = 5, 24, 16
CPU = {"data_device": torch.device("cpu"), "dataloader_num_workers": 0}
REDUCERS: dict[str, Callable[[], nn.Module]] = classes_of(reducers) | {
    "ClassWeightedReducer": lambda: reducers.ClassWeightedReducer(torch.arange(1.0, CLASSES + 1)),
    "MultipleReducers": lambda: reducers.MultipleReducers({"loss": reducers.SumReducer()}),
    "ThresholdReducer": lambda: reducers.ThresholdReducer(low=0.5),
}
REGULARIZERS: dict[str, Callable[[], nn.Module]] = classes_of(regularizers) | {
    "SparseCentersRegularizer": lambda: regularizers.SparseCentersRegularizer(1, CLASSES),
}
WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "CrossBatchMemory": lambda loss: pml_losses.CrossBatchMemory(loss, SIZE),
    "MultipleLosses": lambda loss: pml_losses.MultipleLosses([loss, pml_losses.TripletMarginLoss()], weights=[1, 0.5]),
    "SelfSupervisedLoss": pml_losses.SelfSupervisedLoss,
}


def toy_problem() -> tuple[Tensor, Tensor]:
    """Gaussian clusters (items, FEATURES), ordered by class."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(CLASSES, FEATURES, generator=generator)
    labels = torch.arange(CLASSES).repeat_interleave(20)
    return centres[labels] + 0.5 * torch.randn(len(labels), FEATURES, generator=generator), labels


def _dataset(program: str) -> tuple[TensorDataset, dict[str, object]]:
    """The data in the form that a trainer or tester wants, and its options for that."""
    features, labels = toy_problem()
    if "TwoStream" in program:  # (image, another image of its class, label)
        partners = features.view(CLASSES, -1, FEATURES).roll(1, dims=1).reshape(-1, FEATURES)
        return TensorDataset(features, partners, labels), {"data_and_label_getter": lambda batch: batch}
    if program == "WithSameParentLabelTester":  # two levels of labels, of which the second is the parent
        return TensorDataset(features, torch.stack([labels, labels // 3], dim=1)), {}
    return TensorDataset(features, labels), {}


def train(
    trainer: str, make: Callable[..., nn.Module], epochs: int = 6, **hooks: Callable
) -> tuple[nn.Module, list[nn.Module]]:
    """(trunk, losses) after training with one of PML's trainers, built as in its documentation."""
    torch.manual_seed(0)
    dataset, options = _dataset(trainer)
    options |= hooks
    sizes = [SIZE // 2, SIZE // 2] if trainer == "CascadedEmbeddings" else [SIZE]
    ours = [make(CLASSES, size) for size in sizes]
    names = ["metric_loss_0", "metric_loss_1"] if len(ours) == 2 else ["metric_loss"]
    options |= {"embedding_sizes": sizes} if len(ours) == 2 else {}
    models: dict[str, nn.Module] = {"trunk": nn.Linear(FEATURES, SIZE)}
    functions: dict[str, nn.Module] = dict(zip(names, ours, strict=True))
    if trainer in ("TrainWithClassifier", "DeepAdversarialMetricLearning"):
        models["classifier"] = nn.Linear(SIZE, CLASSES)
        functions["classifier_loss"] = nn.CrossEntropyLoss()
    if trainer == "DeepAdversarialMetricLearning":
        models |= {"trunk": nn.Linear(FEATURES, FEATURES), "embedder": nn.Linear(FEATURES, SIZE)}
        models["generator"] = nn.Linear(3 * FEATURES, FEATURES)
        functions |= {"synth_loss": pml_losses.TripletMarginLoss(), "g_adv_loss": pml_losses.TripletMarginLoss()}
        options |= {"metric_alone_epochs": epochs // 2, "g_triplets_per_anchor": 5}
        options["loss_weights"] = dict.fromkeys([*functions, "g_hard_loss", "g_reg_loss"], 1)
    optimizers = {f"{name}_optimizer": torch.optim.Adam(model.parameters(), lr=1e-2) for name, model in models.items()}
    for name, loss in zip(names, ours, strict=True):
        optimizers[f"{name}_optimizer"] = torch.optim.Adam(loss.param_groups(1e-2, proxy_lr=0.1))
    before = {name: parameters_to_vector(model.parameters()).detach() for name, model in models.items()}
    options |= {"models": models, "optimizers": optimizers, "loss_funcs": functions, "dataset": dataset, **CPU}
    program = getattr(trainers, trainer)(batch_size=25, mining_funcs={}, **options)
    with contextlib.redirect_stderr(io.StringIO()):  # the progress bar
        program.train(num_epochs=epochs)
    for name, start in before.items():
        assert not torch.equal(parameters_to_vector(models[name].parameters()), start), f"{name} was not trained"
    return nn.Sequential(models["trunk"], models.get("embedder", nn.Identity())), ours


def proxy_accuracy(trunk: nn.Module, ours: list[nn.Module]) -> float:
    """How often the nearest proxy is the right one, by the worst of the losses on its part of the embedding."""
    features, labels = toy_problem()
    parts = trunk(features).split(SIZE // len(ours), dim=1)
    predictions = [loss.eval().get_logits(part).argmax(1) for loss, part in zip(ours, parts, strict=True)]
    return min((predicted == labels).float().mean().item() for predicted in predictions)


def metrics_of(tester: str, trunk: nn.Module, search: object) -> dict[str, float]:
    """What one of PML's testers reports for raw embeddings and a search by one of our distances."""
    dataset, options = _dataset(tester)
    calculator = AccuracyCalculator(include=("precision_at_1",), k=5, knn_func=search)
    program = getattr(testers, tester)(normalize_embeddings=False, accuracy_calculator=calculator, **CPU, **options)
    with contextlib.redirect_stderr(io.StringIO()):
        return program.test({"val": dataset}, 0, trunk)["val"]
