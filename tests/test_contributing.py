"""Every block of CONTRIBUTING.md does what the page says."""

import json
import re
import shlex
from pathlib import Path

import pytest
import torch
from pytorch_metric_learning.distances import CosineSimilarity, LpDistance

from pml_nivmf import cli
from pml_nivmf.distributions import VonMisesFisher
from pml_nivmf.experiments import registry
from pml_nivmf.losses import VMFProxyLoss

from . import references

PAGE = (Path(__file__).parents[1] / "pml_nivmf" / "CONTRIBUTING.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture(scope="module")
def written():
    """What the Python blocks define, all but the registration."""
    namespace: dict = {}
    for block in blocks("python")[:-1]:
        exec(compile(block, "CONTRIBUTING.md", "exec"), namespace)
    return namespace


def test_the_distance_is_what_it_says(written):
    z, p = 5 * references.unit(3, 8), 2 * references.unit(4, 8, seed=1)
    means = [VonMisesFisher(v / v.norm(dim=1, keepdim=True), v.norm(dim=1)).mean for v in (z, p)]
    expected = LpDistance(normalize_embeddings=False, power=2)(*means)
    distance = written["MeanVectorDistance"]()
    torch.testing.assert_close(distance(z, p), expected)
    torch.testing.assert_close(distance.pairwise_distance(z, p[:3]), expected.diagonal())


def test_the_distance_takes_twenty_lines():
    code = next(block for block in blocks("python") if "MeanVectorDistance" in block)
    counted = code[code.index("class") :].splitlines()
    assert len([line for line in counted if line.strip()]) <= 20


def test_the_loss_is_what_it_says(written):
    loss = written["CosineProxyLoss"](4, 8, temperature=0.1)
    same = VMFProxyLoss(4, 8, distance=CosineSimilarity(), temperature=0.1)
    same.proxies = loss.proxies
    embeddings, labels = torch.randn(6, 8), torch.arange(6) % 4
    torch.testing.assert_close(loss(embeddings, labels), same(embeddings, labels))


def test_the_commands_run(tmp_path, monkeypatch):
    """The plugin, the experiment and the commands as they stand, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_KINDS", {kind: dict(names) for kind, names in registry._KINDS.items()})
    Path("mine.py").write_text("\n\n".join(blocks("python")))
    (experiment,) = blocks("yaml")
    Path("mine.yaml").write_text(experiment)
    commands = [shlex.split(line) for line in blocks("bash")[-1].splitlines()]
    assert len(commands) == 2
    for command in commands:
        assert command[0] == "pml-nivmf"
        assert cli.main(command[1:]) == 0
    summaries = [json.loads(path.read_text()) for path in sorted(tmp_path.rglob("summary.json"))]
    assert {summary["loss"] for summary in summaries} == {"VMFProxyLoss", "CosineProxyLoss"}
    assert all(summary["test"]["recall_at_1"] > 0.5 for summary in summaries)
