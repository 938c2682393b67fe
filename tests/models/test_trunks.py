"""Trunks return flat features; local weights are loaded completely or refused."""

import urllib.error
import urllib.request

import huggingface_hub
import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from sklearn.linear_model import Ridge
from torchvision import models as torchvision_models
from torchvision.models import WeightsEnum

from pml_nivmf.models import ConvNet, EmbeddingHead, Identity, TimmTrunk, TorchvisionTrunk

TIMM = ["mobilenetv3_small_050", "convnext_atto", "vit_tiny_patch16_224", "test_resnet.r160_in1k"]
TORCHVISION = ["googlenet", "densenet121", "mobilenet_v3_small", "squeezenet1_1"]


def images(size=64, channels=3, count=2):
    return torch.rand(count, channels, size, size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("trunk_class", "name"),
    [*((TimmTrunk, name) for name in TIMM), *((TorchvisionTrunk, name) for name in TORCHVISION)],
)
def test_features(trunk_class, name):
    trunk = trunk_class(name, pretrained=False).eval()
    features = trunk(images(224 if name.startswith("vit") else 64))
    assert features.shape == (2, trunk.num_features)
    assert trunk.num_features != 1000  # ImageNet's classes


def test_features_are_the_input_of_the_classifier(tmp_path):
    """fc(trunk(x)) = full(x) for both libraries, from one file of the full model."""
    full = torchvision_models.resnet18().eval()
    torch.save(full.state_dict(), tmp_path / "full.pth")
    x = images()
    for trunk_class in (TorchvisionTrunk, TimmTrunk):
        trunk = trunk_class("resnet18", weights_file=tmp_path / "full.pth").eval()
        torch.testing.assert_close(full.fc(trunk(x)), full(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "stage"),
    [("mobilenetv3_small_050", "blocks.3"), ("test_resnet.r160_in1k", "layer4"), ("convnext_atto", "stages.2")],
)
def test_the_upper_part_continues_where_the_lower_part_ends(name, stage):
    whole = timm.create_model(name, num_classes=0).eval()
    upper = TimmTrunk(name, pretrained=False, from_stage=stage).eval()
    upper.model.load_state_dict({key: whole.state_dict()[key] for key in upper.model.state_dict()})
    inputs = []
    whole.get_submodule(stage).register_forward_pre_hook(lambda module, arguments: inputs.append(arguments[0]))
    expected = whole(images())
    torch.testing.assert_close(upper(inputs[0]), expected)
    assert sum(p.numel() for p in upper.parameters()) < sum(p.numel() for p in whole.parameters())


def test_the_part_before_a_stage_is_frozen_and_its_maps_can_replace_images():
    torch.manual_seed(0)
    whole = timm.create_model("test_resnet", num_classes=0).eval()
    torch.manual_seed(0)
    trunk = TimmTrunk("test_resnet", pretrained=False, frozen_until="layer3").eval()
    expected, maps = whole(images()), trunk.lower(images())
    torch.testing.assert_close(trunk(images()), expected)
    assert not trunk.train().lower.training
    trunk(images()).sum().backward()
    assert {name.split(".")[0] for name, p in trunk.named_parameters() if p.grad is not None} == {"model"}
    upper = TimmTrunk("test_resnet", pretrained=False, frozen_until="layer3").eval()
    upper.model.load_state_dict({key: whole.state_dict()[key] for key in upper.model.state_dict()})
    upper.takes_maps = True
    torch.testing.assert_close(upper(maps), expected)


@pytest.mark.parametrize(("name", "size"), [("googlenet", 64), ("inception_v3", 75)])
def test_outputs_of_side_classifiers_are_left_out(monkeypatch, name, size):
    full = torchvision_models.get_model(name, aux_logits=True, transform_input=True, init_weights=False).eval()
    monkeypatch.setattr(WeightsEnum, "get_state_dict", lambda *_, **__: full.state_dict())  # no download
    trunk = TorchvisionTrunk(name)
    torch.testing.assert_close(full.fc(trunk.eval()(images(size))), full(images(size)))
    assert trunk.train()(images(size)).shape == (2, trunk.num_features)


@pytest.mark.parametrize(
    "kind", ["plain.pth", "plain.safetensors", "wrapped.pt", "trunk.pth", "parallel.pth", "full.pth"]
)
def test_file_formats(tmp_path, kind):
    source = TimmTrunk("test_resnet", pretrained=False)
    state = source.model.state_dict()
    contents = {
        "wrapped.pt": {"state_dict": state, "epoch": 3},
        "trunk.pth": source.state_dict(),
        "parallel.pth": {f"module.{key}": value for key, value in state.items()},
        "full.pth": {**state, "fc.weight": torch.zeros(7, source.num_features), "fc.bias": torch.zeros(7)},
    }
    if kind == "plain.safetensors":
        save_file(state, tmp_path / kind)
    else:
        torch.save(contents.get(kind, state), tmp_path / kind)
    trunk = TimmTrunk("test_resnet", weights_file=str(tmp_path / kind))
    torch.testing.assert_close(trunk.eval()(images()), source.eval()(images()))


def test_weights_that_do_not_fit(tmp_path):
    state = TimmTrunk("test_resnet", pretrained=False).model.state_dict()
    first = next(iter(state))
    for content, message in (
        ({k: v for k, v in state.items() if k != first}, f"Missing key.*{first}"),
        ({**state, "extra.weight": torch.zeros(1)}, r"Unexpected key.*extra\.weight"),
        ({**state, first: torch.zeros(3)}, f"size mismatch for {first}"),
    ):
        torch.save(content, tmp_path / "weights.pth")
        with pytest.raises(ValueError, match=rf"cannot load .*weights\.pth: .*{message}"):
            TimmTrunk("test_resnet", weights_file=tmp_path / "weights.pth")


class Payload:
    def __reduce__(self):
        return (print, ("pickled code ran",))


def test_files_that_are_not_state_dicts(tmp_path, capsys):
    torch.save(Payload(), tmp_path / "code.pth")
    torch.save({"epoch": 3}, tmp_path / "numbers.pth")
    (tmp_path / "text.pth").write_text("not weights")
    (tmp_path / "cut.safetensors").write_bytes(b"\x10\x00")
    for file in tmp_path.iterdir():
        with pytest.raises(ValueError, match=rf"cannot load the state dict .*{file.name}: .*Error"):
            TimmTrunk("test_resnet", weights_file=file)
    assert "pickled code ran" not in capsys.readouterr().out
    with pytest.raises(FileNotFoundError, match=r"nowhere\.pth' is not a file"):
        TorchvisionTrunk("resnet18", weights_file="nowhere.pth")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: TimmTrunk("resnet5O", pretrained=False), "timm has no model 'resnet5O': did you mean .*resnet50"),
        (lambda: TorchvisionTrunk("googlnet"), "Unknown model googlnet"),
        (lambda: TimmTrunk("resnet18", pretrained=False, num_classes=10), "TimmTrunk does not take num_classes"),
        (
            lambda: TimmTrunk("test_resnet", pretrained=False, from_stage="layer9"),
            "no module 'layer9': .* conv1, bn1",
        ),
    ],
)
def test_wrong_names_and_arguments(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda: TimmTrunk("resnet18", in_chans=1), {"pretrained": True, "num_classes": 0, "in_chans": 1}),
        (lambda: TorchvisionTrunk("resnet18"), {"weights": "DEFAULT"}),
        (lambda: TorchvisionTrunk("resnet18", "IMAGENET1K_V1"), {"weights": "IMAGENET1K_V1"}),
    ],
)
def test_the_libraries_download_and_a_failure_says_what_to_do(monkeypatch, build, expected):
    def offline(name, **kwargs):
        assert {key: kwargs[key] for key in expected} == expected
        raise OSError("no route")

    monkeypatch.setattr(timm, "create_model", offline)
    monkeypatch.setattr(torchvision_models, "get_model", offline)
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: None)
    message = r"no route.*model\.trunk\.\w+Trunk\.pretrained=false, or model\.trunk\.\w+Trunk\.weights_file=PATH"
    with pytest.raises(OSError, match=message):
        build()


@pytest.mark.parametrize(
    ("error", "is_offline"),
    [(urllib.error.URLError("no route"), True), (urllib.error.HTTPError("", 404, "", {}, None), False)],
)
def test_a_hub_that_does_not_answer_is_asked_once_and_the_local_cache_is_used(monkeypatch, error, is_offline):
    """The hub's library asks before every file, with retries, unless it is told to be offline."""

    def urlopen(*arguments, timeout):
        assert timeout <= 5
        raise error

    def create_model(*arguments, **kwargs):
        assert is_offline == huggingface_hub.constants.HF_HUB_OFFLINE
        return whole

    whole = timm.create_model("test_resnet", num_classes=0)
    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    monkeypatch.setattr(timm, "create_model", create_model)
    assert TimmTrunk("resnet18").model is whole


@pytest.mark.parametrize(("depth", "pooling"), [(1, "max"), (5, "avg")])
def test_conv_net(depth, pooling):
    net = ConvNet(in_channels=1, width=8, depth=depth, pooling=pooling)
    for size in (28, 32):
        features = net(images(size, channels=1, count=4))
        assert features.shape == (4, net.num_features) == (4, 16)
    features.sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    with pytest.raises(ValueError, match="pooling must be one of max, avg, got 'mean'"):
        ConvNet(pooling="mean")


def test_identity_and_embedding_head():
    x = torch.rand(3, 6)
    assert Identity(6)(x) is x
    head = EmbeddingHead(6, 4)
    torch.testing.assert_close(head(x), x @ head.weight.T + head.bias)
    head.scale.fill_(3.0)  # a buffer, saved with the weights
    torch.testing.assert_close(head(x), 3 * (x @ head.weight.T + head.bias))
    assert "scale" in head.state_dict()


def test_norms_are_fitted_by_ridge_regression_and_directions_stay():
    generator = np.random.default_rng(0)
    labels = np.append(generator.permutation(np.repeat([3, 5, 9], 10)), 12)  # 12 has one image, which is left out
    features = generator.normal(labels[:, None], 2.0, (31, 6))
    degraded = features * generator.random(6) - generator.random((31, 6))
    head = EmbeddingHead(6, 4).double()
    weight, bias = head.weight.detach().numpy(), head.bias.detach().numpy()
    inputs, target = [], []
    for version in (features, degraded):
        for index in range(30):
            others = [i for i in range(31) if labels[i] == labels[index] and i != index]
            means = features[others] @ weight.T + bias
            mean = (means / np.linalg.norm(means, axis=1, keepdims=True)).mean(axis=0)
            embedding = version[index] @ weight.T + bias
            norm = np.linalg.norm(embedding)
            cosine = np.clip(embedding @ mean / np.linalg.norm(mean) / norm, 0.05, 0.98)
            inputs.append(version[index])
            target.append(np.log(cosine / (1 - cosine**2)) - np.log(norm))
    penalty = 2.0 * np.var(inputs, axis=0).sum() / 6 * 60  # scikit-learn minimises the sum over images
    expected = torch.from_numpy(Ridge(penalty).fit(inputs, target).coef_)

    tensors = [torch.from_numpy(array) for array in (features, degraded, labels)]
    before = head(tensors[0])
    for _ in range(2):  # fitting again changes nothing
        head.fit_norms(*tensors, ridge=2.0)
        torch.testing.assert_close(head.norm_weight, expected)
    factors = torch.exp((tensors[0] - torch.tensor(np.mean(inputs, axis=0))) @ expected)
    torch.testing.assert_close(head(tensors[0]), before * factors[:, None])
    with pytest.raises(ValueError, match="labels have one image of each class"):
        head.fit_norms(*(tensor[-1:] for tensor in tensors))
    head.fit_norms(torch.zeros(4, 6).double(), torch.zeros(4, 6).double(), torch.zeros(4))
    assert not head.norm_weight.any(), "features of a dead trunk say nothing"
