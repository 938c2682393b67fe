"""Kills, Ctrl-C, full disks, two processes on one folder, divergence, mixed precision: nothing is lost or silent."""

import contextlib
import json
import math
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock
from omegaconf import OmegaConf
from pytorch_metric_learning.losses import ProxyAnchorLoss

from pml_nivmf import cli
from pml_nivmf.experiments import checkpoint, registry, run
from pml_nivmf.experiments.build import build_parts
from pml_nivmf.experiments.config import ConfigError, compose

ROOT = Path(__file__).parents[2]
PAGE = 4096  # bytes: a file on a tmpfs takes whole pages


@pytest.fixture(scope="module")
def whole(experiment, tmp_path_factory):
    """The configuration and folder of an undisturbed run."""
    config, folder = compose(experiment).config, tmp_path_factory.mktemp("whole") / "run"
    run.start(config, folder)
    return config, folder


def assert_all_files_are_complete(folder):
    for path in folder.rglob("[!.]*"):
        if path.suffix == ".pt":
            torch.load(path, weights_only=True)
        elif path.suffix == ".json":
            json.loads(path.read_text())
        elif path.suffix == ".npz":
            with np.load(path) as arrays:
                assert all(arrays[name] is not None for name in arrays)
        elif path.suffix == ".yaml":
            assert OmegaConf.load(path).general.batch_size == 8


# Kill and Ctrl-C ------------------------------------------------------------------------------------------------


def _train(config, folder):
    torch.set_num_threads(1)
    sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115  PML's progress bars
    if (folder / "config.yaml").exists():
        run.resume(folder)
    else:
        run.start(config, folder)


@pytest.mark.slow
def test_twenty_kills_change_nothing(experiment, tmp_path, results):
    """Real processes, killed at random moments from the first file to the last."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pml_nivmf.experiments.run", __name__])
    config = compose(experiment, ["general.epochs=12"]).config
    for name in ("warm", "whole"):  # the fork server imports in the first one
        start = time.monotonic()
        process = context.Process(target=_train, args=(config, tmp_path / name))
        process.start()
        process.join()
    duration, expected = time.monotonic() - start, results(tmp_path / "whole")
    generator, kills, number, after_checkpoint = random.Random(0), 0, 0, 0
    while kills < 20:
        folder = tmp_path / f"run-{number}"
        process = context.Process(target=_train, args=(config, folder))
        process.start()
        process.join(generator.uniform(0, 0.6 * duration))
        process.kill()
        process.join()
        if process.exitcode == 0:
            assert results(folder) == expected
            number += 1
            continue
        assert process.exitcode == -signal.SIGKILL
        kills += 1
        after_checkpoint += (folder / "checkpoint.pt").exists()
        assert_all_files_are_complete(folder)
    last = tmp_path / f"run-{number}"
    _train(config, last)
    assert results(last) == expected
    assert after_checkpoint >= 3, f"only {after_checkpoint} of 20 kills came after a checkpoint"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_process_that_is_stopped_can_be_resumed(experiment, tmp_path, number):
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "pml_nivmf", "run", experiment, "general.epochs=500", f"general.run_dir={folder}"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 120
        while not (folder / "checkpoint.pt").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(number)
        error = process.communicate(timeout=60)[1]
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert f"Resume with: pml-nivmf run --resume {folder}" in error
        assert "Traceback" not in error
    reached = checkpoint.load(folder)["epoch"]
    config = OmegaConf.load(folder / "config.yaml")
    config.general.epochs = reached + 1
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(config))
    resumed = run.resume(folder)
    assert resumed["epochs"] == reached + 1
    assert resumed["test"] == run.start(config, tmp_path / "whole")["test"]


def test_interrupt_before_the_run_has_begun(experiment, tmp_path, monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "build_parts", interrupted)
    assert cli.main(["run", experiment, f"general.run_dir={tmp_path / 'run'}"]) == 130
    assert "--resume" not in capsys.readouterr().err


def test_kill_while_overwriting_leaves_no_mixture(whole, tmp_path, results, monkeypatch):
    """--overwrite removes the old run before the new one exists: in between there is nothing to resume."""
    config, folder = whole[0], tmp_path / "run"
    run.start(config, folder)

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(run, "to_yaml", killed)
        with pytest.raises(KeyboardInterrupt):
            run.start(config, folder, overwrite=True)
    with pytest.raises(ConfigError, match="is not a run folder"):
        run.resume(folder)
    run.start(config, folder)
    assert results(folder) == results(whole[1])


# Full disk and two processes ------------------------------------------------------------------------------------


@contextlib.contextmanager
def small_disk(folder, size):
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.name != "posix" or os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("mounting a small tmpfs requires root")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def size_on_disk(paths):
    return sum(math.ceil(path.stat().st_size / PAGE) * PAGE for path in paths)


@pytest.mark.parametrize("share", [0.3, 0.7, 1])  # of what the run writes: full in the first epoch, later, at the end
def test_full_disk(experiment, whole, tmp_path, results, share, capsys):
    begun = size_on_disk(whole[1] / name for name in ("environment.json", "config.yaml"))
    rest = size_on_disk(path for path in whole[1].rglob("*") if path.is_file()) - begun
    folder = tmp_path / "disk" / "run"
    with small_disk(tmp_path / "disk", begun + int(share * rest) - PAGE):
        assert cli.main(["run", experiment, f"general.run_dir={folder}"]) == 1
        error = capsys.readouterr().err
        assert "No space left on device" in error or "disk is full" in error
        assert_all_files_are_complete(folder)
        subprocess.run(["mount", "-o", "remount,size=10m", str(tmp_path / "disk")], check=True)
        assert cli.main(["run", "--resume", str(folder)]) == 0
        assert results(folder) == results(whole[1])


def test_second_process_is_refused(whole, tmp_path, results):
    config, folder = whole[0], tmp_path / "run"
    folder.mkdir()
    with FileLock(folder / ".lock"):
        (folder / "config.yaml").write_text((whole[1] / "config.yaml").read_text())
        with pytest.raises(ConfigError, match=r"is in use by another process: .*general\.run_dir"):
            run.resume(folder)
        with pytest.raises(ConfigError, match="is in use"):
            run.start(config, folder, overwrite=True)
    run.resume(folder)
    assert results(folder) == results(whole[1])


# Divergence -----------------------------------------------------------------------------------------------------


def test_divergence_stops_with_step_and_statistics(experiment, tmp_path):
    overrides = ["optimizers.model={SGD: {lr: 1.0e+30}}", "optimizers.concentration_lr=1e30"]
    config, folder = compose(experiment, overrides).config, tmp_path / "run"
    with pytest.raises(FloatingPointError) as caught:
        run.start(config, folder)
    expected = (
        "epoch 1, step 2 of 3",
        "largest embedding norm: ",
        "gradients that are not finite: ",
    )
    assert [text for text in expected if text not in str(caught.value)] == []


class SteepLoss(ProxyAnchorLoss):
    """A finite loss with an infinite gradient: the derivative of a root at zero."""

    def forward(self, embeddings, labels, indices_tuple=None, ref_emb=None, ref_labels=None):
        return (self.proxies * 0).square().sum().add(embeddings.sum() * 0).sqrt() * 1  # PML changes losses in place


def test_infinite_gradients_of_a_finite_loss_stop_before_the_step(experiment, tmp_path, monkeypatch):
    monkeypatch.setitem(registry._KINDS["loss"], "SteepLoss", SteepLoss)
    config = compose(experiment, ["loss={SteepLoss: {}}"]).config
    with pytest.raises(FloatingPointError, match=r"epoch 1, step 1 .*gradients contain NaN.*not finite: embedder\.\w+"):
        run.start(config, tmp_path / "run")


@pytest.mark.parametrize("loss", ["el_nivmf", "el_nivmf_sampled", "el_vmf", "panc_el_nivmf"])
def test_low_temperature_and_high_rates_never_continue_with_nan(experiment, tmp_path, loss):
    """With temperature 0.003 and a proxy rate 50,000 times the model's, a run stays finite or stops with a reason."""
    (name, arguments), *_ = compose(experiment, [f"loss={loss}"]).config.loss.items()
    inner = f"{name}.probabilistic.{next(iter(arguments.probabilistic))}" if "probabilistic" in arguments else name
    overrides = [f"loss={loss}", f"loss.{inner}.temperature=0.003", "optimizers.model={Adam: {lr: 1e-5}}"]
    rates = ["optimizers.proxy_lr=0.5", "optimizers.concentration_lr=0.2", "optimizers.temperature_lr=0.002"]
    config, folder = compose(experiment, [*overrides, *rates]).config, tmp_path / "run"
    with contextlib.suppress(FloatingPointError):
        run.start(config, folder)
    state = checkpoint.load(folder) or {"embedder": {}, "loss": {}}
    assert all(value.isfinite().all() for part in ("embedder", "loss") for value in state[part].values())


# Mixed precision ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("amp", "loss"), [("bfloat16", "el_nivmf"), ("float16", "proxy_anchor")])
def test_mixed_precision(experiment, tmp_path, amp, loss, results, kill_after):
    config = compose(experiment, [f"general.amp={amp}", f"loss={loss}"]).config
    parts, half = build_parts(config), getattr(torch, amp)
    features, weight, bias = torch.randn(5, 4), parts.embedder.weight, parts.embedder.bias
    z = parts.embed(features)
    expected = torch.nn.functional.linear(features.to(half), weight.to(half), bias.to(half)).float()
    torch.testing.assert_close(z, expected, rtol=0, atol=0)
    assert not torch.equal(z, torch.nn.functional.linear(features, weight, bias))

    run.start(config, tmp_path / "whole")
    state = checkpoint.load(tmp_path / "whole")
    dtypes = {v.dtype for part in ("embedder", "loss") for v in state[part].values() if v.is_floating_point()}
    assert dtypes == {torch.float32}
    assert bool(state["scaler"]) == (amp == "float16")
    run.start(compose(experiment, [f"loss={loss}"]).config, tmp_path / "full precision")
    mixed, full = ([row["train_loss"] for row in results(tmp_path / name)[1]] for name in ("whole", "full precision"))
    assert mixed == pytest.approx(full, rel=0.05)
    assert mixed != full
    with kill_after(1):
        run.start(config, tmp_path / "killed")
    run.resume(tmp_path / "killed")
    assert results(tmp_path / "killed") == results(tmp_path / "whole")


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning")
def test_float16_skips_steps_that_overflow_until_the_scale_is_one(experiment, tmp_path, monkeypatch):
    monkeypatch.setitem(registry._KINDS["loss"], "SteepLoss", SteepLoss)
    config = compose(experiment, ["loss={SteepLoss: {}}", "general.amp=float16", "general.epochs=9"]).config
    with pytest.raises(FloatingPointError, match=r"epoch 6, step 2 of 3: .*gradients contain NaN"):  # 2^16: 16 steps
        run.start(config, tmp_path / "run")
