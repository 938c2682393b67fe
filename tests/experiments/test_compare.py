"""Comparisons of several losses and seeds: planned and checked as a whole, resumed, shown as a table."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from pml_nivmf import cli
from pml_nivmf.experiments import compare
from pml_nivmf.experiments.config import ConfigError, compose

ROOT = Path(__file__).parents[2]


def processes_of(group):
    """The running processes of a group. Those that ended, but that init has not collected yet, do not count."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            state, _, process_group = path.read_text().rpartition(")")[2].split()[:3]
            if int(process_group) == group and state != "Z":
                yield path


def wait_for_processes(group):
    """Raise if a process of the group is alive after half a minute."""
    deadline = time.monotonic() + 30
    while running := list(processes_of(group)):
        assert time.monotonic() < deadline, f"workers did not end with the command: {running}"
        time.sleep(0.1)


def test_compare_makes_a_table_and_reuses_finished_runs(experiment, tmp_path, capsys, in_process):
    arguments = ["compare", experiment, "general.epochs=1", "--dir", str(tmp_path / "runs"), "--jobs", "2"]
    assert cli.main(arguments) == 0
    folder = tmp_path / "runs" / "tiny"
    table = json.loads((folder / "comparison.json").read_text())
    assert [(row["loss"], row["seeds"]) for row in table] == [("proxy_anchor", 2), ("el_nivmf", 2)]
    assert json.loads((folder / "el_nivmf" / "seed-1" / "summary.json").read_text())["seed"] == 1
    output = capsys.readouterr().out
    assert "R@1" in output
    columns = [[row["metrics"][name]["mean"] for row in table] for name in table[0]["metrics"]]
    best = sum(means.count(max(means)) for means in columns)
    assert len(re.findall(r"\* \d", output)) == best, "the best of each metric is marked where nothing can be bold"
    assert "| el_nivmf |" in (folder / "comparison.md").read_text()
    assert (folder / "report.html").exists()
    times = {path: path.stat().st_mtime_ns for path in folder.rglob("summary.json")}
    assert re.search(r"proxy_anchor, seed 1: validation_mean_average_precision_at_r 0\.\d+, \d+ s", output)
    assert cli.main(arguments) == 0
    assert "4 of 4 runs are finished and reused" in capsys.readouterr().out
    saved = (folder / "el_nivmf" / "seed-1" / "config.yaml").read_text()
    assert "threads: 1\n" in saved, "a run outside of a worker must repeat it"
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("summary.json")} == times
    assert cli.main([*arguments, "general.batch_size=4"]) == 2
    assert "another general.batch_size" in capsys.readouterr().err


def test_overrides_concern_the_losses_of_their_class(experiment, tmp_path):
    overrides = ["loss.NonIsotropicVMFLoss.temperature=0.5", "general.epochs=1"]
    jobs = compare.plan(experiment, ["proxy_anchor", "el_nivmf"], 1, overrides, tmp_path)
    losses = [OmegaConf.to_container(job.config.loss) for job in jobs]
    assert "temperature" not in losses[0]["ProxyAnchorLoss"]
    assert losses[1]["NonIsotropicVMFLoss"]["temperature"] == 0.5


def test_vary(experiment, tmp_path):
    jobs = compare.plan(experiment, ["proxy_anchor"], 1, [], tmp_path, vary="general.epochs=1,2")
    assert [(job.label, job.config.general.epochs) for job in jobs] == [
        ("proxy_anchor-epochs-1", 1),
        ("proxy_anchor-epochs-2", 2),
    ]


def test_dry_run_prints_every_row_and_ignores_existing_runs(experiment, tmp_path, capsys):
    folder = tmp_path / "tiny" / "proxy_anchor" / "seed-0"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(compose(experiment).config))
    assert cli.main(["compare", experiment, "general.epochs=7", "--dry-run", "--dir", str(tmp_path)]) == 0
    rows = [OmegaConf.create(text) for text in capsys.readouterr().out.split("---\n")[1:]]
    assert [next(iter(row.loss)) for row in rows] == ["ProxyAnchorLoss", "NonIsotropicVMFLoss"]
    assert [row.general.epochs for row in rows] == [7, 7]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--losses", "cos,cos"], "two losses have the same name: cos, cos"),
        (["--losses", "cos,"], "unknown loss ''"),
        (["loss.NonIsotropicVMFLos.temperature=3"], "did you mean 'NonIsotropicVMFLoss'"),
        (["loss.NonIsotropicVMFLoss.temperatur=3"], "did you mean 'temperature'"),
        (["general.run_dir=x"], "--dir"),
        (["loss=cos"], "--losses"),
        (["--losses", "cos", "--vary", "general.epochs"], "--vary takes KEY=VALUE,VALUE"),
    ],
)
def test_mistakes_fail_before_the_first_run(experiment, tmp_path, arguments, message, capsys):
    assert cli.main(["compare", experiment, "--dir", str(tmp_path / "runs"), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_failure_of_a_run_is_reported(experiment, tmp_path):
    jobs = compare.plan(experiment, ["proxy_anchor"], 1, ["general.batch_size=100000"], tmp_path)
    with pytest.raises(ConfigError, match="batch_size"):
        compare.run_jobs(jobs, workers=1)


def test_worker_that_dies_is_reported():
    with pytest.raises(ChildProcessError, match="ended unexpectedly"):
        compare.in_processes(os._exit, [3], 1)


def test_interrupted_comparison_leaves_no_process(experiment, tmp_path):
    command = [sys.executable, "-m", "pml_nivmf", "compare", experiment, "general.epochs=500", "--jobs=1"]
    with subprocess.Popen(
        [*command, f"--dir={tmp_path}"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        deadline = time.monotonic() + 120
        while not list(tmp_path.rglob("checkpoint.pt")) and time.monotonic() < deadline:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: also to the workers
        error = process.communicate(timeout=60)[1]
    assert process.returncode == 130, error
    assert "the same command continues" in error
    assert not {"Traceback", "leaked"} & set(error.split())
    wait_for_processes(process.pid)
