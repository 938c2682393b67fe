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

from pml_nivmf.losses import JointProxyLoss

CLASSES, FEATURES, SIZE = 5, 24, 16
MakeLoss = Callable[..., nn.Module]


def toy_problem(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, FEATURES, generator=generator)
    labels = torch.arange(CLASSES).repeat(20)
    return centres[labels] + 0.5 * torch.randn(len(labels), FEATURES, generator=generator), labels


# Reducers and regularizers --------------------------------------------------------------------------------------

REDUCERS: dict[str, Callable[[], nn.Module]] = {
    "AvgNonZeroReducer": reducers.AvgNonZeroReducer,
    "ClassWeightedReducer": lambda: reducers.ClassWeightedReducer(torch.arange(1.0, CLASSES + 1)),
    "DivisorReducer": reducers.DivisorReducer,
    "DoNothingReducer": reducers.DoNothingReducer,
    "MeanReducer": reducers.MeanReducer,
    "MultipleReducers": lambda: reducers.MultipleReducers({"loss": reducers.SumReducer()}),
    "PerAnchorReducer": reducers.PerAnchorReducer,
    "SumReducer": reducers.SumReducer,
    "ThresholdReducer": lambda: reducers.ThresholdReducer(low=0.5),
}
REGULARIZERS: dict[str, Callable[[], nn.Module]] = {
    "CenterInvariantRegularizer": regularizers.CenterInvariantRegularizer,
    "LpRegularizer": regularizers.LpRegularizer,
    "RegularFaceRegularizer": regularizers.RegularFaceRegularizer,
    "SparseCentersRegularizer": lambda: regularizers.SparseCentersRegularizer(1, CLASSES),
    "ZeroMeanRegularizer": regularizers.ZeroMeanRegularizer,
}
WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "CrossBatchMemory": lambda loss: pml_losses.CrossBatchMemory(loss, SIZE),
    "MultipleLosses": lambda loss: pml_losses.MultipleLosses([loss, pml_losses.TripletMarginLoss()], weights=[1, 0.5]),
    "SelfSupervisedLoss": pml_losses.SelfSupervisedLoss,
}


# Trainers -------------------------------------------------------------------------------------------------------


def _pairs(features: Tensor, labels: Tensor) -> TensorDataset:
    """(image, another image of its class, label), as trainers and testers of two streams want."""
    partner = torch.cat([(labels == label).nonzero().flatten().roll(1) for label in range(CLASSES)])
    order = torch.cat([(labels == label).nonzero().flatten() for label in range(CLASSES)])
    return TensorDataset(features[order], features[partner], labels[order])


def train(trainer: str, make: MakeLoss, epochs: int = 8, seed: int = 0) -> tuple[nn.Module, list[nn.Module]]:
    """(trunk, losses) after training with one of PML's trainers, built as its documentation builds it."""
    torch.manual_seed(seed)
    features, labels = toy_problem()
    sizes = [SIZE // 2, SIZE // 2] if trainer == "CascadedEmbeddings" else [SIZE]
    ours = [make(CLASSES, size) for size in sizes]
    names = [f"metric_loss_{i}" for i in range(2)] if len(ours) == 2 else ["metric_loss"]
    models: dict[str, nn.Module] = {"trunk": nn.Linear(FEATURES, SIZE)}
    functions: dict[str, nn.Module] = dict(zip(names, ours, strict=True))
    options: dict[str, object] = {"embedding_sizes": sizes} if len(ours) == 2 else {}
    dataset = TensorDataset(features, labels)
    if trainer == "TwoStreamMetricLoss":
        dataset = _pairs(features, labels)
        options["data_and_label_getter"] = lambda batch: batch
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
    with contextlib.redirect_stderr(io.StringIO()):  # the progress bar
        getattr(trainers, trainer)(
            models=models,
            optimizers=optimizers,
            batch_size=25,
            loss_funcs=functions,
            dataset=dataset,
            mining_funcs={},
            data_device=torch.device("cpu"),
            dataloader_num_workers=0,
            **options,
        ).train(num_epochs=epochs)
    for name, start in before.items():
        assert not torch.equal(parameters_to_vector(models[name].parameters()), start), f"{name} was not trained"
    trunk = nn.Sequential(models["trunk"], models["embedder"]) if "embedder" in models else models["trunk"]
    return trunk, ours


def proxy_accuracy(trunk: nn.Module, ours: list[nn.Module]) -> float:
    """How often the nearest proxy is the right one, by the worst of the losses on its part of the embedding."""
    features, labels = toy_problem()
    parts = trunk(features).split(SIZE // len(ours), dim=1)
    found = [loss.eval().get_logits(part).argmax(1) for loss, part in zip(ours, parts, strict=True)]
    return min((predicted == labels).float().mean().item() for predicted in found)


# Testers --------------------------------------------------------------------------------------------------------


def metrics_of(tester: str, trunk: nn.Module, search: object) -> dict[str, float]:
    """What one of PML's testers reports for raw embeddings and a search by one of our distances."""
    features, labels = toy_problem(seed=0)
    options: dict[str, object] = {}
    dataset = TensorDataset(features, labels)
    if tester == "GlobalTwoStreamEmbeddingSpaceTester":
        dataset = _pairs(features, labels)
        options["data_and_label_getter"] = lambda batch: batch
    if tester == "WithSameParentLabelTester":  # two levels of labels, of which the second is the parent
        dataset = TensorDataset(features, torch.stack([labels, labels // 3], dim=1))
    built = getattr(testers, tester)(
        normalize_embeddings=False,
        dataloader_num_workers=0,
        data_device=torch.device("cpu"),
        accuracy_calculator=AccuracyCalculator(include=("precision_at_1",), k=5, knn_func=search),
        **options,
    )
    with contextlib.redirect_stderr(io.StringIO()):
        return built.test({"val": dataset}, 0, trunk)["val"]


def single(loss: nn.Module) -> nn.Module:
    return loss.probabilistic if isinstance(loss, JointProxyLoss) else loss
