"""The code of CONTRIBUTING.md runs and does what the page says."""

import copy
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
def definitions():
    """What the Python blocks define, without the last one, which registers it."""
    namespace: dict = {}
    for block in blocks("python")[:-1]:
        exec(compile(block, "CONTRIBUTING.md", "exec"), namespace)
    return namespace


def test_the_distance(definitions):
    z, p = 5 * references.unit(3, 8), 2 * references.unit(4, 8, seed=1)
    means = [VonMisesFisher(v / v.norm(dim=1, keepdim=True), v.norm(dim=1)).mean for v in (z, p)]
    expected = LpDistance(normalize_embeddings=False, power=2)(*means)
    distance = definitions["MeanVectorDistance"]()
    torch.testing.assert_close(distance(z, p), expected)
    torch.testing.assert_close(distance.pairwise_distance(z, p[:3]), expected.diagonal())


def test_the_loss(definitions):
    loss = definitions["CosineProxyLoss"](4, 8, temperature=0.1)
    same = VMFProxyLoss(4, 8, distance=CosineSimilarity(), temperature=0.1)
    same.proxies = loss.proxies
    embeddings, labels = torch.randn(6, 8), torch.arange(6) % 4
    torch.testing.assert_close(loss(embeddings, labels), same(embeddings, labels))


def test_the_commands(tmp_path, monkeypatch):
    """All blocks together, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_KINDS", copy.deepcopy(registry._KINDS))  # the plugin stays in this test
    Path("mine.py").write_text("\n\n".join(blocks("python")))
    Path("mine.yaml").write_text(*blocks("yaml"))
    for line in blocks("bash")[-1].splitlines():
        assert line.startswith("pml-nivmf ")
        assert cli.main(shlex.split(line)[1:]) == 0
    summaries = [json.loads(path.read_text()) for path in tmp_path.rglob("summary.json")]
    assert {summary["loss"] for summary in summaries} == {"VMFProxyLoss", "CosineProxyLoss"}
    assert all(summary["test"]["recall_at_1"] > 0.5 for summary in summaries)
