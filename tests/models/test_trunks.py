"""Trunks give flat features of the width they state, and local weights are loaded whole or refused."""

import pickle

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn
from torchvision import models as torchvision_models
from torchvision.models import WeightsEnum

from pml_nivmf.models import ConvNet, EmbeddingHead, Identity, TimmTrunk, TorchvisionTrunk

TIMM = ["resnet18", "mobilenetv3_small_050", "vgg11", "convnext_atto", "vit_tiny_patch16_224", "test_resnet.r160_in1k"]
TORCHVISION = [
    "googlenet",
    "resnet18",
    "densenet121",
    "vgg11",
    "mobilenet_v3_small",
    "efficientnet_b0",
    "convnext_tiny",
    "squeezenet1_1",
    "regnet_y_400mf",
    "vit_b_16",
    "inception_v3",
]


def images(size=64, channels=3, count=2):
    return torch.rand(count, channels, size, size, generator=torch.Generator().manual_seed(0))


def size_for(name):
    return 224 if name.startswith("vit") else 75 if name == "inception_v3" else 64


@pytest.mark.parametrize("name", TIMM)
def test_timm_features(name):
    trunk = TimmTrunk(name, pretrained=False).eval()
    features = trunk(images(size_for(name)))
    assert features.shape == (2, trunk.num_features)
    assert torch.isfinite(features).all()


@pytest.mark.parametrize("name", TORCHVISION)
def test_torchvision_features(name):
    trunk = TorchvisionTrunk(name, pretrained=False).eval()
    features = trunk(images(size_for(name)))
    assert features.shape == (2, trunk.num_features)
    assert trunk.num_features != 1000  # ImageNet's classes


def test_features_are_what_the_classifier_sees(tmp_path):
    """fc(trunk(x)) = full(x) for both libraries, from one file of the full model."""
    full = torchvision_models.resnet18().eval()
    torch.save(full.state_dict(), tmp_path / "full.pth")
    x = images()
    for trunk in (
        TorchvisionTrunk("resnet18", weights_file=tmp_path / "full.pth"),
        TimmTrunk("resnet18", weights_file=tmp_path / "full.pth"),
    ):
        assert trunk.num_features == 512
        torch.testing.assert_close(full.fc(trunk.eval()(x)), full(x), rtol=1e-4, atol=1e-5)


def test_googlenet_has_no_side_outputs_and_converts_inputs_for_loaded_weights(tmp_path):
    full = torchvision_models.googlenet(aux_logits=True, transform_input=True, init_weights=False).eval()
    torch.save(full.state_dict(), tmp_path / "googlenet.pth")
    trunk = TorchvisionTrunk(weights_file=tmp_path / "googlenet.pth")
    x = images()
    torch.testing.assert_close(full.fc(trunk.eval()(x)), full(x))
    plain = TorchvisionTrunk(weights_file=tmp_path / "googlenet.pth", transform_input=False).eval()
    assert not torch.allclose(plain(x), trunk(x))
    assert trunk.train()(x).shape == (2, 1024)


def test_googlenet_is_inception_v1_with_batch_norm():
    trunk = TorchvisionTrunk(pretrained=False)
    assert sum(isinstance(layer, nn.BatchNorm2d) for layer in trunk.modules()) == 57
    assert not any("aux" in name for name in trunk.state_dict())


def test_old_densenet_keys(tmp_path):
    trunk = TorchvisionTrunk("densenet121", pretrained=False)
    old = {}
    for key, value in trunk.model.state_dict().items():
        for part in ("norm1", "norm2", "conv1", "conv2"):
            if "denselayer" in key:
                key = key.replace(f".{part}.", f".{part[:-1]}.{part[-1]}.")
        old[key] = value
    assert "features.denseblock1.denselayer1.norm.1.weight" in old
    torch.save(old, tmp_path / "densenet.pth")
    again = TorchvisionTrunk("densenet121", weights_file=tmp_path / "densenet.pth")
    assert all(torch.equal(a, b) for a, b in zip(again.state_dict().values(), trunk.state_dict().values(), strict=True))


@pytest.mark.parametrize("kind", ["pth", "pt", "safetensors", "wrapped", "trunk", "parallel"])
def test_file_formats(tmp_path, kind):
    source = TimmTrunk("test_resnet", pretrained=False)
    state = source.model.state_dict()
    file = tmp_path / f"weights.{kind if kind in ('pt', 'safetensors') else 'pth'}"
    match kind:
        case "safetensors":
            save_file(state, file)
        case "wrapped":
            torch.save({"state_dict": state, "epoch": 3}, file)
        case "trunk":
            torch.save(source.state_dict(), file)
        case "parallel":
            torch.save({f"module.{key}": value for key, value in state.items()}, file)
        case _:
            torch.save(state, file)
    trunk = TimmTrunk("test_resnet", weights_file=str(file))
    torch.testing.assert_close(trunk.eval()(images()), source.eval()(images()))


def test_a_classifier_in_the_file_is_left_out(tmp_path):
    full = timm.create_model("test_resnet", num_classes=7)
    assert "fc.weight" in full.state_dict()
    torch.save(full.state_dict(), tmp_path / "full.pth")
    trunk = TimmTrunk("test_resnet", weights_file=tmp_path / "full.pth")
    assert torch.equal(trunk.model.conv1[0].weight, full.conv1[0].weight)


def test_weights_that_do_not_fit(tmp_path):
    state = TimmTrunk("test_resnet", pretrained=False).model.state_dict()
    first = next(iter(state))
    cases = {
        "missing": ({k: v for k, v in state.items() if k != first}, f"1 keys missing .{first}"),
        "unexpected": ({**state, "extra.weight": torch.zeros(1)}, r"1 keys unexpected .extra\.weight"),
        "shape": ({**state, first: torch.zeros(3)}, f"1 keys of another shape .{first}"),
    }
    for name, (content, message) in cases.items():
        torch.save(content, tmp_path / name)
        with pytest.raises(ValueError, match=message):
            TimmTrunk("test_resnet", weights_file=tmp_path / name)


class Payload:
    def __reduce__(self):
        return (print, ("pickled code ran",))


def test_files_that_hold_no_state_dict(tmp_path, capsys):
    torch.save(Payload(), tmp_path / "code.pth")
    torch.save({"epoch": 3}, tmp_path / "numbers.pth")
    torch.save({}, tmp_path / "empty.pth")
    torch.save([1], tmp_path / "list.pth")
    (tmp_path / "text.pth").write_text("not weights")
    (tmp_path / "pickle.pth").write_bytes(pickle.dumps({"a": Payload()}))
    (tmp_path / "cut.safetensors").write_bytes(b"\x10\x00")
    for name in ("code.pth", "numbers.pth", "empty.pth", "list.pth", "text.pth", "pickle.pth", "cut.safetensors"):
        with pytest.raises(ValueError, match=r"holds no plain state dict .*: save one with"):
            TimmTrunk("test_resnet", weights_file=tmp_path / name)
    assert "pickled code ran" not in capsys.readouterr().out
    with pytest.raises(FileNotFoundError, match=r"nowhere\.pth' does not exist"):
        TorchvisionTrunk("resnet18", weights_file="nowhere.pth")


def test_unknown_names():
    with pytest.raises(ValueError, match=r"timm has no model 'resnet5O': did you mean .*resnet50"):
        TimmTrunk("resnet5O", pretrained=False)
    with pytest.raises(ValueError, match=r"torchvision has no model 'googlnet': did you mean googlenet"):
        TorchvisionTrunk("googlnet", pretrained=False)
    with pytest.raises(ValueError, match=r"torchvision has no model 'zzzz': it knows \d+ others"):
        TorchvisionTrunk("zzzz")
    with pytest.raises(ValueError, match=r"num_classes=10 cannot be chosen"):
        TimmTrunk("resnet18", pretrained=False, num_classes=10)


def test_a_failed_download_says_what_to_do(monkeypatch):
    def offline(*args, **kwargs):
        raise OSError("no route")

    monkeypatch.setattr(timm, "create_model", offline)
    monkeypatch.setattr(torchvision_models, "get_model", offline)
    for make in (lambda: TimmTrunk("resnet18"), lambda: TorchvisionTrunk("resnet18")):
        with pytest.raises(OSError, match=r"no route.*use pretrained=False, or weights_file"):
            make()


def test_pretrained_reaches_the_libraries(monkeypatch, tmp_path):
    """What is asked of timm and torchvision; the downloads themselves are theirs."""
    asked = []
    create, get = timm.create_model, torchvision_models.get_model

    def timm_create(name, pretrained, **kwargs):
        asked.append(pretrained)
        return create(name, pretrained=False, **kwargs)

    def torchvision_get(name, weights, **kwargs):
        asked.append(weights)
        return get(name, weights=None, **kwargs)

    monkeypatch.setattr(timm, "create_model", timm_create)
    monkeypatch.setattr(torchvision_models, "get_model", torchvision_get)
    torch.save(TimmTrunk("test_resnet").model.state_dict(), tmp_path / "w.pth")
    TimmTrunk("test_resnet", weights_file=tmp_path / "w.pth")
    TorchvisionTrunk("resnet18")
    TorchvisionTrunk("resnet18", pretrained="IMAGENET1K_V1")
    assert asked == [True, False, "DEFAULT", "IMAGENET1K_V1"]


@pytest.mark.parametrize("name", ["googlenet", "inception_v3"])
def test_side_classifiers_of_torchvision_s_own_weights_are_removed(monkeypatch, name):
    """Those weights hold them, and torchvision builds no model without them from there."""
    full = torchvision_models.get_model(name, aux_logits=True, transform_input=True, init_weights=False).eval()
    monkeypatch.setattr(WeightsEnum, "get_state_dict", lambda *_, **__: full.state_dict())  # instead of a download
    trunk = TorchvisionTrunk(name)
    x = images(size_for(name))
    torch.testing.assert_close(full.fc(trunk.eval()(x)), full(x))
    assert trunk.train()(x).shape == (2, trunk.num_features)
    assert not [key for key in trunk.state_dict() if "aux" in key.lower()]
    with pytest.raises(ValueError, match=f"torchvision has no weights 'IMAGENET1K_V9' of {name}"):
        TorchvisionTrunk(name, pretrained="IMAGENET1K_V9")


def test_timm_arguments_and_unpooled_features():
    trunk = TimmTrunk("test_resnet", pretrained=False, in_chans=1)
    assert trunk.eval()(images(32, channels=1)).shape == (2, trunk.num_features)
    unpooled = TimmTrunk("test_resnet", pretrained=False, global_pool="")
    with pytest.raises(ValueError, match=r"keep timm's global_pool on"):
        unpooled.eval()(images())


@pytest.mark.parametrize("size", [28, 32])
@pytest.mark.parametrize("depth", [1, 3, 5])
@pytest.mark.parametrize("pooling", ["max", "avg"])
def test_conv_net(size, depth, pooling):
    net = ConvNet(in_channels=1, width=8, depth=depth, pooling=pooling)
    features = net(images(size, channels=1, count=4))
    assert features.shape == (4, net.num_features) == (4, 16)
    features.sum().backward()
    assert all(p.grad is not None for p in net.parameters())


def test_conv_net_learns_and_ignores_the_image_size():
    torch.manual_seed(0)
    labels = torch.arange(64) % 2
    x = 0.3 * torch.randn(64, 1, 28, 28)
    x[labels == 1, :, 8:20, 12:15] += 1.0  # bars against noise
    net = nn.Sequential(ConvNet(width=8), EmbeddingHead(16, 2))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(20):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), labels).backward()
        optimizer.step()
    net.eval()
    assert (net(x).argmax(1) == labels).float().mean() > 0.95
    larger = nn.functional.pad(x, (2, 2, 2, 2))
    assert (net(larger).argmax(1) == labels).float().mean() > 0.9


def test_conv_net_arguments():
    with pytest.raises(ValueError, match=r"width must be at least 4, got 3"):
        ConvNet(width=3)
    with pytest.raises(ValueError, match=r"depth must be an integer of at least 1, got 0"):
        ConvNet(depth=0)
    with pytest.raises(ValueError, match=r"pooling must be one of max, avg, got 'mean'"):
        ConvNet(pooling="mean")
    with pytest.raises(ValueError, match=r"images of \(28, 15\) pixels are too small for this depth: they need 16"):
        ConvNet(width=4, depth=5)(torch.zeros(2, 1, 28, 15))


def test_identity():
    trunk = Identity(5)
    x = torch.rand(3, 5)
    assert trunk(x) is x
    assert trunk.num_features == 5
    with pytest.raises(ValueError, match=r"shape \(batch, 5\), got \(3, 4\)"):
        trunk(torch.rand(3, 4))
    with pytest.raises(ValueError, match=r"num_features must be an integer of at least 1, got 0"):
        Identity(0)


def test_embedding_head():
    head = EmbeddingHead(6, 4)
    assert isinstance(head, nn.Linear)  # what losses.calibrate_head takes
    assert head.embedding_size == 4
    x = torch.rand(3, 6)
    torch.testing.assert_close(head(x), x @ head.weight.T + head.bias)
    assert EmbeddingHead(6, 4, bias=False).bias is None
    with pytest.raises(ValueError, match=r"embedding_size must be an integer of at least 1, got -2"):
        EmbeddingHead(6, -2)
