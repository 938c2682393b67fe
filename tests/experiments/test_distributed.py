"""Runs on two ranks, as torchrun starts them: like one process, in one folder, and whatever happens to a rank."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import BatchSampler, SequentialSampler

from pml_nivmf import cli
from pml_nivmf.experiments import checkpoint, data_parallel, distributed, run, tester
from pml_nivmf.experiments.build import build_parts
from pml_nivmf.experiments.config import compose
from pml_nivmf.experiments.errors import ConfigError

from ..data import fakes

ROOT = Path(__file__).parents[2]
EPOCHS = 4
KILLER = """
import os, signal
from pml_nivmf.experiments import run

train_epoch = run.train_epoch

def train_or_die(trainer, epoch):
    if epoch == 3 and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return train_epoch(trainer, epoch)

run.train_epoch = train_or_die
"""


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    """PANC + EL-nivMF in closed form: coupled by ProxyAnchor, without noise, so that numbers can be compared."""
    folder = tmp_path_factory.mktemp("experiment")
    fakes.features(folder / "features.npz")
    path = folder / "tiny.yaml"
    path.write_text(
        f"""
description: tiny
groups: {{model: features, loss: panc_el_nivmf}}
dataset: {{FeatureArrays: {{npz: {folder / "features.npz"}}}}}
model: {{embedding_size: 6}}
evaluation: {{metrics: [mean_average_precision_at_r], recall_at: [1], batch_size: 8}}
general: {{epochs: {EPOCHS}, batch_size: 8, device: cpu}}
"""
    )
    return str(path)


@pytest.fixture(scope="module")
def whole(experiment, tmp_path_factory):
    """The run of one process, which nothing disturbs."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    run.start(compose(experiment).config, folder)
    return folder


def torchrun(*arguments):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m", "pml_nivmf"]
    return subprocess.run(
        [*command, "run", *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, timeout=500
    )


def history(folder):
    return json.loads((folder / "history.json").read_text())


def assert_like(folder, whole):
    assert len(history(folder)) == EPOCHS
    for row, expected in zip(history(folder), history(whole), strict=True):
        assert row == pytest.approx(expected, rel=1e-4)
    summary, expected = (json.loads((f / "summary.json").read_text()) for f in (folder, whole))
    assert summary["best_epoch"] == expected["best_epoch"]
    assert summary["test"] == pytest.approx(expected["test"], rel=1e-4)


def test_a_killed_rank_ends_the_run_which_one_process_finishes(experiment, whole, tmp_path):
    folder, plugin = tmp_path / "run", tmp_path / "killer.py"
    plugin.write_text(KILLER)
    done = torchrun(experiment, f"general.run_dir={folder}", "--plugin", plugin)
    assert done.returncode != 0
    words = f"torchrun --nproc_per_node=2 -m pml_nivmf run --resume {folder} --plugin={plugin}"
    assert words in done.stderr, done.stderr
    assert json.loads((folder / "environment.json").read_text())["ranks"] == 2
    assert len(history(folder)) == 2
    assert not (folder / "summary.json").exists()
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["epoch-00001.pt", "epoch-00002.pt"]
    run.resume(folder)
    assert_like(folder, whole)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_train_like_one_process(experiment, whole, tmp_path):
    """Over nccl; a GPU's sums are not those of a CPU."""
    done = torchrun(experiment, f"general.run_dir={tmp_path / 'run'}", "general.device=cuda")
    assert done.returncode == 0, done.stderr
    for row, expected in zip(history(tmp_path / "run"), history(whole), strict=True):
        assert row["train_loss"] == pytest.approx(expected["train_loss"], rel=1e-2)


class _Killed(BaseException):
    pass


def test_two_ranks_finish_what_one_process_began(experiment, whole, tmp_path, monkeypatch):
    save = checkpoint.save

    def save_and_die(folder, state):
        save(folder, state)
        raise _Killed

    folder = tmp_path / "run"
    monkeypatch.setattr(checkpoint, "save", save_and_die)
    with pytest.raises(_Killed):
        run.start(compose(experiment).config, folder)
    done = torchrun("--resume", folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("best epoch") == 1, "one rank speaks"
    assert_like(folder, whole)
    parts = build_parts(compose(experiment).config)
    best = torch.load(folder / "best.pt", weights_only=True)
    parts.trunk.load_state_dict(best["trunk"])
    parts.embedder.load_state_dict(best["embedder"])
    found = run._evaluate(parts, "test", 0)
    tested = json.loads((folder / "summary.json").read_text())["test"]
    assert found == {f"test_{name}": value for name, value in tested.items()}, "equal to the last bit"


DIVERGER = """
import os
from pml_nivmf.models import EmbeddingHead

forward, seen = EmbeddingHead.forward, []

def forward_or_diverge(self, features):
    seen.append(self.training)
    embeddings = forward(self, features)
    return embeddings * float("inf") if sum(seen) == 30 and os.environ["RANK"] == "1" else embeddings

EmbeddingHead.forward = forward_or_diverge
"""


INFINITE_LOSS = """
import os
from pml_nivmf.losses import JointProxyLoss

forward, seen = JointProxyLoss.forward, []

def forward_or_diverge(self, *arguments):
    seen.append(self.training)
    loss = forward(self, *arguments)
    return loss * float("inf") if sum(seen) == 30 and os.environ["RANK"] == "1" else loss

JointProxyLoss.forward = forward_or_diverge
"""


@pytest.mark.parametrize(
    ("fault", "amp", "message"),
    [
        (DIVERGER, "off", "embeddings on rank 1 hold NaN, infinity or a norm that is too large"),
        (INFINITE_LOSS, "float16", "not finite on rank 1"),  # where a rank alone leaves steps out that overflow
    ],
    ids=["embeddings", "loss"],
)
def test_a_rank_that_diverges_alone_stops_all_and_the_state_is_kept(experiment, tmp_path, fault, amp, message):
    folder, plugin = tmp_path / "run", tmp_path / "diverger.py"
    plugin.write_text(fault)
    options = [f"general.run_dir={folder}", "general.epochs=50", f"general.amp={amp}"]
    done = torchrun(experiment, *options, "--plugin", plugin)
    assert done.returncode != 0
    assert message in done.stderr, done.stderr
    assert f"the weights and the batch are in {folder / 'crash.pt'}" in done.stderr
    assert "lost another rank" not in done.stderr
    assert torch.load(folder / "crash.pt", weights_only=True)["step"] >= 1


TOLD_TO_END = """
import os, pathlib, signal, sys, threading, time
from pml_nivmf.experiments import dying_ranks

dying_ranks.is_launched = lambda: True
os.environ["RANK"] = "0"
with dying_ranks.explained(lambda: "GO ON"):
    if sys.argv[1] == "waiting":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    with dying_ranks.finishing():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)
        pathlib.Path(sys.argv[2]).write_text("whole")
    raise FloatingPointError("it diverged")
"""


@pytest.mark.parametrize("state", ["waiting", "finishing"])
def test_a_rank_that_is_told_to_end_finishes_what_it_writes(tmp_path, state):
    """When all ranks diverge, torchrun may end the one that still writes crash.pt, because another was faster."""
    arguments = [sys.executable, "-c", TOLD_TO_END, state, str(tmp_path / "file")]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert done.returncode != 0
    assert (tmp_path / "file").exists() == (state == "finishing")
    assert ("it diverged" in done.stderr) == (state == "finishing")
    assert ("rank 0 was told to end" in done.stderr) == (state == "waiting")
    assert ("GO ON" in done.stderr) == (state == "waiting")


STUCK = """
import hashlib, os, signal, threading
from pml_nivmf.experiments import dying_ranks

dying_ranks.is_launched = lambda: True
dying_ranks._INTERRUPT_PATIENCE = 0.5
os.environ["RANK"] = "1"
with dying_ranks.explained(lambda: "GO ON"):
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
"""


def test_an_interrupt_ends_a_rank_that_waits_where_python_handles_no_signal():
    done = subprocess.run([sys.executable, "-c", STUCK], cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert done.returncode == 130, done.stderr
    assert "pml-nivmf: rank 1 was interrupted. GO ON" in done.stderr


# Without processes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2"}, "LOCAL_RANK, MASTER_ADDR, MASTER_PORT is not: start .* torchrun"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is set in the environment, RANK, LOCAL_RANK"),
        (dict.fromkeys(distributed._NEEDED, "2"), "RANK=2 and WORLD_SIZE=2 .* do not fit"),
        (dict.fromkeys(distributed._NEEDED, "x"), "WORLD_SIZE='x' in the environment is no number"),
    ],
)
def test_incomplete_environment(monkeypatch, variables, message):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=message), distributed.session():
        pass


def test_commands_with_workers_of_their_own_refuse_torchrun(monkeypatch, capsys):
    for name, value in zip(distributed._NEEDED, ("0", "2", "0", "localhost", "1"), strict=True):
        monkeypatch.setenv(name, value)
    for command in ("compare", "sweep"):
        assert cli.main([command, "glyphs"]) == 2
        assert f"`{command}` starts its own processes: leave torchrun out" in capsys.readouterr().err


@pytest.fixture
def as_rank(monkeypatch):
    """Pretend to be one of several ranks, where no collective is needed."""

    def pretend(rank, world):
        for module in (distributed, data_parallel, tester):
            monkeypatch.setattr(module, "rank", lambda: rank)
            monkeypatch.setattr(module, "world", lambda: world, raising=False)
        monkeypatch.setattr(data_parallel, "on_first", lambda work: work())

    return pretend


def test_a_batch_that_cannot_be_split_is_refused(experiment, as_rank):
    as_rank(0, 3)
    with pytest.raises(
        ConfigError, match=r"general\.batch_size: 8 images .* 3 ranks: use a multiple of 3, such as 6, .*2 ranks"
    ):
        build_parts(compose(experiment).config)


def test_ranks_share_each_batch_of_one_order(as_rank):
    parts = []
    for rank in range(2):
        as_rank(rank, 2)
        sampler = data_parallel.split(SequentialSampler(range(11)), None, batch_size=4)
        assert len(sampler) == 4
        parts.append(list(sampler))
    assert parts == [[0, 1, 4, 5], [2, 3, 6, 7]]  # the last three are no batch


def test_ranks_share_each_batch_of_a_batch_sampler(as_rank):
    as_rank(1, 2)
    batches = BatchSampler(SequentialSampler(range(8)), 4, drop_last=True)
    sampler = data_parallel.split(batches, None, batch_size=4)
    assert isinstance(sampler, BatchSampler)
    assert len(sampler) == 2
    assert list(sampler) == [[2, 3], [6, 7]]


def test_noise_is_each_ranks_own_and_each_epochs(as_rank):
    drawn = []
    for rank, epoch in ((1, 1), (2, 1), (1, 2), (1, 1)):
        as_rank(rank, 3)
        distributed.seed_rank(seed=5, epoch=epoch)
        drawn.append(torch.rand(3).tolist())
    assert drawn[0] == drawn[3]
    assert drawn[0] != drawn[1] != drawn[2] != drawn[0]


def test_whole_batches_are_dealt_out(as_rank):
    as_rank(0, 3)
    shares = tester.deal(items=10, batch_size=3)
    assert [share.tolist() for share in shares] == [[0, 1, 2, 9], [3, 4, 5], [6, 7, 8]]


@pytest.mark.parametrize(
    ("loss", "option", "message"),
    [
        ("el_nivmf", {"sharded": True}, "sharded=True is for training loops of your own"),
        ("el_nivmf", {"sparse": True, "negative_samples": 2}, "sparse=True cannot be averaged"),
    ],
)
def test_losses_that_runs_cannot_distribute(experiment, as_rank, loss, option, message):
    options = [f"loss={loss}", *(f"loss.NonIsotropicVMFLoss.{name}={value}" for name, value in option.items())]
    takes_sparse = "optimizers.model={Adagrad: {lr: 0.01}}"
    parts = build_parts(compose(experiment, [*options, takes_sparse]).config)
    as_rank(0, 2)
    with pytest.raises(ConfigError, match=message):
        data_parallel.joined(parts.loss, None)
