"""The speed benchmark runs, counts memory, and prints what it measured. Nothing here is timed."""

import json
import subprocess
import sys

import pytest
import torch

from pml_nivmf import cli
from pml_nivmf.experiments.benchmarks import classes as bench_classes
from pml_nivmf.experiments.benchmarks import speed as bench


@pytest.fixture(scope="module")
def results():
    threads = torch.get_num_threads()
    yield bench.run([bench.Shape(8, 6, 16, 3), bench.Shape(4, 3, 8, 2)], rounds=2, threads=1)
    torch.set_num_threads(threads)


def test_every_loss_is_measured_at_every_shape(results):
    names = {r.loss.split(",")[0] for r in results}
    assert names >= {"ProxyNCALoss", "ProxyAnchorLoss", "NonIsotropicVMFLoss", "VMFProxyLoss", "Algorithm 1"}
    assert {r.classes for r in results} == {6, 3}
    assert all(r.milliseconds > 0 and r.ratio > 0 and r.peak_megabytes > 0 for r in results)
    assert all(r.ratio == 1 for r in results if r.loss == bench.BASELINE)


def test_transcription_is_skipped_for_many_classes():
    assert "Algorithm 1, transcribed" not in bench._losses(bench.Shape(112, 11318, 8, 5))
    assert "Algorithm 1, transcribed" in bench._losses(bench.Shape(112, 100, 8, 5))


def test_peak_memory_counts_what_is_alive_at_once():
    kept = []

    def step():
        first = torch.zeros(1_000_000)  # 4 MB
        second = first + 1  # 4 MB more
        del first
        kept[:] = [second + 1]  # 8 MB alive again

    assert bench.peak_megabytes(step, torch.device("cpu")) == pytest.approx(8, abs=0.1)


def test_table_and_json(results):
    table = bench.as_table(results)
    assert table.count("× ProxyAnchor") == 2
    assert "batch 8, 6 classes, 16 dimensions, 3 samples" in table
    parsed = json.loads(bench.as_json(results))
    assert len(parsed) == len(results)
    assert parsed[0]["loss"] == results[0].loss


def test_command(capsys):
    threads = torch.get_num_threads()
    assert cli.main(["bench", "--shape", "4,3,8,2", "--rounds", "1", "--threads", "1", "--json"]) == 0
    torch.set_num_threads(threads)
    assert json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "--shape", "4,3"], "four integers B,C,M,N"),
        (["bench", "--shape", "4,0,8,2"], "classes in '4,0,8,2' must be an integer of at least 1, got 0"),
        (["bench", "--rounds", "0", "--shape", "4,3,8,2"], "rounds must be an integer of at least 1, got 0"),
        (["bench", "--classes", "100,many"], "--classes takes integers such as 100,1000,10000, got '100,many'"),
        (["bench", "--classes", "100,1"], "must be an integer of at least 2, got 1"),
        (["bench", "--classes", "100", "--chunk-size", "0"], "--chunk-size must be an integer of at least 1, got 0"),
    ],
)
def test_bad_arguments(arguments, message, capsys):
    assert cli.main(arguments) == 2
    assert message in capsys.readouterr().err


def test_module_and_help():
    done = subprocess.run([sys.executable, "-m", "pml_nivmf", "--help"], capture_output=True, text=True, check=True)
    assert "bench" in done.stdout
    done = subprocess.run([sys.executable, "-m", "pml_nivmf", "bench", "--help"], capture_output=True, text=True)
    assert "--json" in done.stdout


def test_scaling_table_and_json(capsys):
    threads = torch.get_num_threads()
    options = ["--classes", "20,50", "--chunk-size", "8", "--rounds", "1", "--threads", "1"]
    assert cli.main(["bench", *options, "--json"]) == 0
    parsed = json.loads(capsys.readouterr().out)
    assert {row["classes"] for row in parsed} == {20, 50}
    assert {row["loss"].split(",")[0] for row in parsed} == {"ProxyAnchorLoss", "EL-nivMF", "EL-nivMF analytic"}
    assert all(row["milliseconds"] > 0 and row["extra_megabytes"] > 0 for row in parsed)
    baseline = next(row for row in parsed if row["loss"] == "ProxyAnchorLoss")
    assert baseline["gradient_megabytes"] == baseline["parameter_megabytes"] == pytest.approx(20 * 128 * 4e-6)
    assert cli.main(["bench", *options]) == 0
    torch.set_num_threads(threads)
    assert "50 classes" in capsys.readouterr().out


def test_what_would_not_fit_is_not_measured_all_at_once():
    assert "EL-nivMF, all at once" in bench_classes._losses(10_000, 4096)
    assert not [name for name in bench_classes._losses(1_000_000, 4096) if "all at once" in name]
