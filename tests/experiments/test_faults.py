"""Kills, full disks, two processes on one folder, divergence, mixed precision: nothing is lost, nothing silent."""

import contextlib
import json
import math
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from pytorch_metric_learning.losses import ProxyAnchorLoss

from pml_nivmf import cli
from pml_nivmf.checks import NotFiniteError
from pml_nivmf.experiments import checkpoint, exhaustion, locking, registry, run
from pml_nivmf.experiments.build import build_parts
from pml_nivmf.experiments.config import compose
from pml_nivmf.experiments.errors import ConfigError

from ..data import fakes

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    fakes.features(folder / "features.npz")
    (folder / "tiny.yaml").write_text(
        f"""
description: tiny
groups: {{model: features, schedule: cosine}}
dataset: {{FeatureArrays: {{npz: {folder / "features.npz"}}}}}
model: {{embedding_size: 16}}
evaluation: {{metrics: [mean_average_precision_at_r], recall_at: [1]}}
general: {{epochs: 3, batch_size: 8, device: cpu}}
"""
    )
    return str(folder / "tiny.yaml")


@pytest.fixture(scope="module")
def whole(experiment, tmp_path_factory):
    """An undisturbed run: (config, folder)."""
    config, folder = compose(experiment).config, tmp_path_factory.mktemp("whole") / "run"
    run.start(config, folder)
    return config, folder


def results(folder):
    """All that a run found out, but for the time it took."""
    summary = json.loads((folder / "summary.json").read_text())
    with np.load(folder / "test_items.npz") as items:
        digest = {name: items[name].tobytes() for name in items}
    summary.pop("seconds")
    return summary, json.loads((folder / "history.json").read_text()), digest


def assert_all_files_are_whole(folder):
    """Whatever can be read under its own name is complete."""
    for path in folder.rglob("*"):
        if path.name.startswith(".") or not path.is_file():
            continue
        if path.suffix == ".pt":
            torch.load(path, weights_only=True)
        elif path.suffix == ".json":
            json.loads(path.read_text())
        elif path.suffix == ".npz":
            with np.load(path) as arrays:
                assert all(arrays[name] is not None for name in arrays)
        elif path.suffix == ".yaml":
            assert OmegaConf.load(path).general.batch_size == 8


# kill -9 --------------------------------------------------------------------------------------------------------


def _train(config, folder):
    torch.set_num_threads(1)
    sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115  PML's progress bars
    if (folder / "config.yaml").exists():
        run.resume(folder)
    else:
        run.start(config, folder)


@pytest.mark.slow
def test_twenty_kills_change_nothing(experiment, tmp_path):
    """Real processes, killed at random moments from the first file to the last; forked, so that no time goes into
    imports."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pml_nivmf.experiments.run", __name__])
    config = compose(experiment, ["general.epochs=12"]).config
    first = context.Process(target=_train, args=(config, tmp_path / "warm"))
    first.start()  # the fork server imports
    first.join()
    began = time.monotonic()
    second = context.Process(target=_train, args=(config, tmp_path / "whole"))
    second.start()
    second.join()
    duration, expected = time.monotonic() - began, results(tmp_path / "whole")
    chance, kills, number, within = random.Random(0), 0, 0, 0
    while kills < 20:
        folder = tmp_path / f"run-{number}"
        process = context.Process(target=_train, args=(config, folder))
        process.start()
        process.join(chance.uniform(0, 0.6 * duration))
        process.kill()  # which does nothing where it has ended
        process.join()
        if process.exitcode == 0:
            assert results(folder) == expected
            number += 1
            continue
        assert process.exitcode == -signal.SIGKILL
        kills += 1
        within += bool(list(folder.glob("checkpoints/epoch-*.pt")))
        if folder.exists():
            assert_all_files_are_whole(folder)
    last = tmp_path / f"run-{number}"
    _train(config, last)
    assert results(last) == expected
    assert within >= 3, f"only {within} of 20 kills came after a checkpoint"
    assert not list(last.rglob("*.partial"))


def test_a_kill_while_starting_again_leaves_no_mixture(whole, tmp_path, monkeypatch):
    """--overwrite clears the old run before the new one is there: between the two there is no run to resume."""
    config, folder = whole[0], tmp_path / "run"
    run.start(config, folder)

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(run, "to_yaml", killed)
        with pytest.raises(KeyboardInterrupt):
            run.start(config, folder, overwrite=True)
    with pytest.raises(ConfigError, match="is no run folder"):
        run.resume(folder)
    run.start(config, folder)
    assert results(folder) == results(whole[1])


# full disk ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def largest_file(size):
    """Writing beyond `size` bytes fails within the block, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_checkpoint_that_does_not_fit_spoils_nothing(tmp_path):
    state = {key: {} for key in checkpoint._REQUIRED} | {"trunk": {"weight": torch.ones(50_000)}}
    checkpoint.save(tmp_path / "checkpoints", state | {"epoch": 1})
    with (
        largest_file(100_000),
        pytest.raises(OSError, match="is full, or a quota is reached: free some space"),
        exhaustion.explained(tmp_path),
    ):
        checkpoint.save(tmp_path / "checkpoints", state | {"epoch": 2})
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["epoch-00001.pt"]
    assert checkpoint.load_newest(tmp_path / "checkpoints")["epoch"] == 1


def test_full_database(whole, tmp_path):
    config = whole[0].copy()
    config.general.epochs = 1
    run.start(config, tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    text = (tmp_path / "run" / "config.yaml").read_text()
    (tmp_path / "run" / "config.yaml").write_text(text.replace("epochs: 1\n", "epochs: 3\n"))
    with largest_file(5000), pytest.raises(OSError, match=r"full.* go on with: pml-nivmf run --resume"):
        run.resume(tmp_path / "run")
    assert checkpoint.load_newest(tmp_path / "run" / "checkpoints")["epoch"] == 1


@contextlib.contextmanager
def small_disk(folder, size):
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.name != "posix" or os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("mounting a small tmpfs takes root")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("size", ["48k", "84k", "104k"])  # from within the first epoch to within the last
def test_full_disk(experiment, whole, tmp_path, size, capsys):
    folder = tmp_path / "disk" / "run"
    with small_disk(tmp_path / "disk", size):
        assert cli.main(["run", experiment, f"general.run_dir={folder}"]) == 1
        assert f"the disk of {folder} is full" in (error := capsys.readouterr().err)
        assert f"pml-nivmf run --resume {folder}" in error
        assert_all_files_are_whole(folder)
        subprocess.run(["mount", "-o", "remount,size=10m", str(tmp_path / "disk")], check=True)
        assert cli.main(["run", "--resume", str(folder)]) == 0
        assert results(folder) == results(whole[1])


def test_too_little_memory_is_said_to_be(tmp_path):
    with pytest.raises(OSError, match=r"out of memory .*general\.batch_size"), exhaustion.explained(tmp_path):
        torch.empty(2**55)
    with pytest.raises(RuntimeError, match="shape"), exhaustion.explained(tmp_path):
        torch.ones(2, 3) @ torch.ones(2, 3)


# two processes --------------------------------------------------------------------------------------------------


def _holder(folder, then):
    """A process that holds the folder's lock, and what it said."""
    script = (
        "import os, pathlib, sys, time\n"
        "from pml_nivmf.experiments.locking import only_process\n"
        f"with only_process(pathlib.Path({str(folder)!r})):\n"
        f"    {then}\n"
        "    time.sleep(600)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True
    )
    return process, process.stdout.readline().strip()


def test_second_process_is_refused_until_the_first_is_dead(whole, tmp_path):
    config, folder = whole[0], tmp_path / "run"
    process, _ = _holder(folder, "print('held', flush=True)")
    try:
        (folder / "config.yaml").write_text((whole[1] / "config.yaml").read_text())
        refused = pytest.raises(ConfigError, match=f"is in use by process {process.pid} on .*general.run_dir")
        with refused:
            run.resume(folder)
        with refused:
            run.start(config, folder, overwrite=True)
        with refused:
            run.start(config, folder)  # not "holds an unfinished run: continue it"
    finally:
        process.kill()
        process.wait()
    run.resume(folder)
    assert results(folder) == results(whole[1])


def test_a_lock_does_not_outlive_its_process_in_workers(tmp_path):
    """Workers of a data loader are forked and may live on for a while."""
    child_sleeps = "os.fork() or (print(os.getpid(), flush=True), time.sleep(600), os._exit(0))"
    process, child = _holder(tmp_path, child_sleeps)
    process.kill()
    process.wait()
    try:
        os.kill(int(child), 0)  # it lives
        with locking.only_process(tmp_path), pytest.raises(ConfigError, match=f"in use by process {os.getpid()} "):
            locking.check_free(tmp_path)
        locking.check_free(tmp_path)
    finally:
        os.kill(int(child), signal.SIGKILL)


# divergence -----------------------------------------------------------------------------------------------------


def test_divergence_is_measured_and_kept(experiment, tmp_path):
    overrides = ["loss=el_nivmf", "optimizers.model={SGD: {lr: 1.0e+30}}", "optimizers.concentration_lr=1e30"]
    config, folder = compose(experiment, overrides).config, tmp_path / "run"
    with pytest.raises(FloatingPointError) as caught:
        run.start(config, folder)
    wanted = ("epoch 1, step 2 of 3", "largest embedding norm: ", "temperature: ", "concentrations: ", "--overwrite")
    assert [text for text in wanted if text not in str(caught.value)] == []
    crash = torch.load(folder / "crash.pt", weights_only=True)
    assert crash["epoch"] == 1
    assert crash["step"] == 2
    assert crash["embeddings"].shape == (8, 16)
    assert len(crash["labels"]) == 8
    parts = build_parts(config)
    parts.loss.load_state_dict(crash["loss"])
    assert set(crash["optimizers"]) == set(parts.optimizers)
    assert crash["statistics"]["rates"]["metric_loss"][0] == 1e30


class _SteepLoss(ProxyAnchorLoss):
    """A finite loss whose gradient is infinite: the derivative of a root at zero."""

    def forward(self, embeddings, labels, indices_tuple=None, ref_emb=None, ref_labels=None):
        return (self.proxies * 0).square().sum().add(embeddings.sum() * 0).sqrt() * 1  # PML changes losses in place


def test_infinite_gradients_of_a_finite_loss_stop_before_the_step(experiment, tmp_path, monkeypatch):
    monkeypatch.setitem(registry._KINDS["loss"], "SteepLoss", _SteepLoss)
    config = compose(experiment, ["loss={SteepLoss: {}}"]).config
    with pytest.raises(FloatingPointError, match=r"epoch 1, step 1 .*gradients hold NaN.*gradients: embedder\.\w+"):
        run.start(config, tmp_path / "run")
    crash = torch.load(tmp_path / "run" / "crash.pt", weights_only=True)
    assert all(value.isfinite().all() for value in crash["embedder"].values())
    assert crash["statistics"]["not finite: parameters"] == []


def test_divergence_seen_by_the_evaluation(whole, tmp_path, monkeypatch):
    real = run._evaluate

    def evaluate(parts, split, epoch):
        if epoch == 2:
            raise NotFiniteError("query embeddings: row 3 holds NaN")
        return real(parts, split, epoch)

    monkeypatch.setattr(run, "_evaluate", evaluate)
    with pytest.raises(FloatingPointError, match=r"the evaluation after epoch 2: query embeddings: row 3 holds NaN"):
        run.start(whole[0], tmp_path / "run")
    assert checkpoint.load_newest(tmp_path / "run" / "checkpoints")["epoch"] == 1


@pytest.mark.parametrize("loss", ["el_nivmf", "el_nivmf_exact", "el_vmf", "panc_el_nivmf"])
def test_cold_temperature_and_high_rates_never_go_on_with_nan(experiment, tmp_path, loss):
    """Temperature 0.003 and proxies' rate ×50,000: numbers to the end, or a stop that says why."""
    (name, arguments), *_ = compose(experiment, [f"loss={loss}"]).config.loss.items()
    inner = f"{name}.probabilistic.{next(iter(arguments.probabilistic))}" if "probabilistic" in arguments else name
    overrides = [f"loss={loss}", f"loss.{inner}.temperature=0.003", "optimizers.model={Adam: {lr: 1e-5}}"]
    rates = ["optimizers.proxy_lr=0.5", "optimizers.concentration_lr=0.2", "optimizers.temperature_lr=0.002"]
    config, folder = compose(experiment, [*overrides, *rates]).config, tmp_path / "run"
    stopped = ""
    try:
        run.start(config, folder)
    except FloatingPointError as error:
        stopped = str(error)
    if stopped:
        assert "temperature: 0.00" in stopped
        assert (folder / "crash.pt").exists()
    else:
        assert all(math.isfinite(row["train_loss"]) for row in json.loads((folder / "history.json").read_text()))
    state = checkpoint.load_newest(folder / "checkpoints")
    tensors = [] if state is None else [value for part in ("embedder", "loss") for value in state[part].values()]
    assert all(value.isfinite().all() for value in tensors)


# mixed precision ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("amp", ["bfloat16", "float16"])
@pytest.mark.parametrize("loss", ["el_nivmf", "proxy_anchor"])
def test_mixed_precision(experiment, tmp_path, amp, loss, monkeypatch):
    config = compose(experiment, [f"general.amp={amp}", f"loss={loss}"]).config
    parts = build_parts(config)
    features = torch.randn(5, 4)
    weight, bias = parts.embedder.weight, parts.embedder.bias
    z = parts.embedder(parts.trunk(features))
    assert z.dtype == torch.float32, "for the loss"
    half = getattr(torch, amp)
    expected = torch.nn.functional.linear(features.to(half), weight.to(half), bias.to(half)).float()
    torch.testing.assert_close(z, expected, rtol=0, atol=0)
    assert not torch.equal(z, torch.nn.functional.linear(features, weight, bias))

    run.start(config, tmp_path / "whole")
    state = checkpoint.load_newest(tmp_path / "whole" / "checkpoints")
    dtypes = {v.dtype for part in ("embedder", "loss") for v in state[part].values() if v.is_floating_point()}
    assert dtypes == {torch.float32}
    run.start(compose(experiment, [f"loss={loss}"]).config, tmp_path / "full precision")
    mixed, full = ([row["train_loss"] for row in results(tmp_path / name)[1]] for name in ("whole", "full precision"))
    assert mixed == pytest.approx(full, rel=0.05)
    assert mixed != full
    assert (state["scaler"] is None) == (amp == "bfloat16")
    save = checkpoint.save

    def save_and_die(folder, state):
        save(folder, state)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "save", save_and_die)
        with pytest.raises(KeyboardInterrupt):
            run.start(config, tmp_path / "killed")
    run.resume(tmp_path / "killed")
    assert results(tmp_path / "killed") == results(tmp_path / "whole")


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning")
def test_float16_steps_that_overflow_are_left_out_until_the_scale_is_one(experiment, tmp_path, monkeypatch):
    monkeypatch.setitem(registry._KINDS["loss"], "SteepLoss", _SteepLoss)
    config = compose(experiment, ["loss={SteepLoss: {}}", "general.amp=float16", "general.epochs=9"]).config
    with pytest.raises(FloatingPointError, match=r"epoch 6, step 2 of 3: .*gradients hold NaN"):  # 2^16 takes 16 steps
        run.start(config, tmp_path / "run")
    assert torch.load(tmp_path / "run" / "crash.pt", weights_only=True)["scaler"]["scale"] == 1


def test_mixed_precision_is_one_of_three(experiment):
    assert compose(experiment, ["general.amp=off"]).config.general.amp == "off"
    for wrong in ("true", "float8", "16"):
        with pytest.raises(ConfigError, match=r"general\.amp must be one of off, bfloat16, float16"):
            compose(experiment, [f"general.amp={wrong}"])
