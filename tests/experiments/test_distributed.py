"""Runs on two ranks, as torchrun starts them: the numbers of one process, one folder, and a rank that fails."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import BatchSampler, SequentialSampler

from pml_nivmf.experiments import checkpoint, distributed, evaluate, run
from pml_nivmf.experiments.build import build_parts
from pml_nivmf.experiments.config import ConfigError, compose
from pml_nivmf.models import TimmTrunk

ROOT = Path(__file__).parents[2]
OPTIONS = ["loss=panc_el_nivmf", "schedule=default", "general.epochs=4"]  # coupled by ProxyAnchor, without noise


@pytest.fixture(scope="module")
def whole(experiment, tmp_path_factory):
    """An undisturbed run of one process."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    run.start(compose(experiment, OPTIONS).config, folder)
    return folder


def torchrun(*arguments):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m", "pml_nivmf"]
    return subprocess.run(
        [*command, "run", *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, timeout=500
    )


def history(folder):
    return json.loads((folder / "history.json").read_text())


def assert_equal_results(folder, whole):
    for row, expected in zip(history(folder), history(whole), strict=True):
        assert row == pytest.approx(expected, rel=1e-4)
    summary, expected = (json.loads((f / "summary.json").read_text()) for f in (folder, whole))
    assert summary["best_epoch"] == expected["best_epoch"]
    assert summary["test"] == pytest.approx(expected["test"], rel=1e-4)


KILLER = """
import os, signal
from pml_nivmf.experiments.train import Trainer

original = Trainer.calculate_loss

def calculate_loss(self, batch):
    if self.epoch == 3 and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return original(self, batch)

Trainer.calculate_loss = calculate_loss
"""


def test_dead_rank_ends_the_run_and_one_process_finishes_it(experiment, whole, tmp_path):
    folder, plugin = tmp_path / "run", tmp_path / "killer.py"
    plugin.write_text(KILLER)
    result = torchrun(experiment, *OPTIONS, f"general.run_dir={folder}", "--plugin", plugin)
    assert result.returncode != 0
    assert json.loads((folder / "environment.json").read_text())["ranks"] == 2
    assert len(history(folder)) == 2
    assert not (folder / "summary.json").exists()
    run.resume(folder)
    assert_equal_results(folder, whole)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_train_like_one_process(experiment, whole, tmp_path):
    result = torchrun(experiment, *OPTIONS, f"general.run_dir={tmp_path / 'run'}", "general.device=cuda")
    assert result.returncode == 0, result.stderr
    for row, expected in zip(history(tmp_path / "run"), history(whole), strict=True):
        assert row["train_loss"] == pytest.approx(expected["train_loss"], rel=1e-2)


def test_two_ranks_finish_what_one_process_began(experiment, whole, tmp_path, kill_after):
    folder, config = tmp_path / "run", compose(experiment, OPTIONS).config
    with kill_after(1):
        run.start(config, folder)
    result = torchrun("--resume", folder)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("best epoch") == 1, "only one rank prints"
    assert_equal_results(folder, whole)
    parts = build_parts(config)
    checkpoint.load_best(parts, folder)
    expected = json.loads((folder / "summary.json").read_text())["test"]
    assert evaluate.evaluate(parts, "test") == {f"test_{name}": value for name, value in expected.items()}


DIVERGER = """
import os
from pml_nivmf.models import EmbeddingHead

forward, calls = EmbeddingHead.forward, []

def forward_or_diverge(self, features):
    calls.append(self.training)
    embeddings = forward(self, features)
    return embeddings * float("inf") if sum(calls) == 8 and os.environ["RANK"] == "1" else embeddings

EmbeddingHead.forward = forward_or_diverge
"""


def test_rank_that_diverges_alone_stops_all(experiment, tmp_path):
    folder, plugin = tmp_path / "run", tmp_path / "diverger.py"
    plugin.write_text(DIVERGER)
    result = torchrun(experiment, *OPTIONS, f"general.run_dir={folder}", "general.epochs=50", "--plugin", plugin)
    assert result.returncode != 0
    assert "training diverged in epoch 3, step 2" in result.stderr, result.stderr
    assert checkpoint.load(folder)["epoch"] == 2


# Without processes ----------------------------------------------------------------------------------------------


@pytest.fixture
def as_rank(monkeypatch):
    """Pretend to be one of several ranks, where no collective is needed."""

    def pretend(rank, world):
        monkeypatch.setattr(distributed, "rank", lambda: rank)
        monkeypatch.setattr(distributed, "world", lambda: world)
        monkeypatch.setattr(distributed, "on_first", lambda work: work())

    return pretend


def test_batch_that_cannot_be_split(experiment, as_rank):
    as_rank(0, 3)
    with pytest.raises(ConfigError, match=r"general\.batch_size: 8 images .* 3 ranks: use a multiple of 3"):
        build_parts(compose(experiment).config)


@pytest.mark.parametrize("sampler", [SequentialSampler(range(11)), BatchSampler(range(8), 4, drop_last=True)])
def test_ranks_share_each_batch(as_rank, sampler):
    parts = []
    for rank in range(2):
        as_rank(rank, 2)
        batches = distributed.RankBatches(sampler, items=11, batch_size=4)
        assert len(batches) == 2, "the last three items are not a batch"
        parts.append(list(batches))
    assert parts == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]


def test_noise_differs_between_ranks_and_epochs(as_rank):
    samples = []
    for rank, epoch in ((1, 1), (2, 1), (1, 2), (1, 1)):
        as_rank(rank, 3)
        distributed.seed_epoch(seed=5, epoch=epoch)
        samples.append(torch.rand(3).tolist())
    assert samples[0] == samples[3]
    assert samples[0] != samples[1] != samples[2] != samples[0]


@pytest.mark.parametrize(
    ("softmax", "message"),
    [
        ("{SampledSoftmax: {n_negatives: 2, sparse: true}}", "sparse gradients cannot be averaged"),
        ("{ShardedSoftmax: {}}", "ShardedSoftmax is for training loops of your own"),
    ],
)
def test_losses_that_runs_cannot_distribute(experiment, as_rank, softmax, message):
    options = [f"loss.NonIsotropicVMFLoss.softmax={softmax}", "optimizers.model~OVERRIDE~={Adagrad: {lr: 0.01}}"]
    parts = build_parts(compose(experiment, ["loss=el_nivmf", *options]).config)
    as_rank(0, 2)
    with pytest.raises(ConfigError, match=message):
        distributed.joined(parts.loss, None)


def test_batch_norms_of_all_ranks_keep_their_activations(as_rank):
    """timm's batch norms contain the activation that follows."""
    as_rank(0, 2)
    trunk = distributed.synchronised(TimmTrunk("test_efficientnet", pretrained=False), torch.device("cuda"))
    assert {type(module).__name__ for module in trunk.modules() if "BatchNorm" in type(module).__name__} == {
        "SyncBatchNormAct"
    }
