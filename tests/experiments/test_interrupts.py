"""Ctrl-C and kills of commands with workers: never lost, no traceback, nothing left behind, and how to go on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pml_nivmf import cli
from pml_nivmf.commands import run as command
from pml_nivmf.experiments import checkpoint, interrupts, run

from .processes import last_words

ROOT = Path(__file__).parents[2]


def test_interrupt_says_how_to_go_on(experiment, tmp_path):
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "pml_nivmf", "run", experiment, "general.epochs=500", f"general.run_dir={folder}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 120
        while not list(folder.glob("checkpoints/epoch-*.pt")) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        error = last_words(process)
    assert process.returncode == 130
    assert f"pml-nivmf run --resume {folder}" in error
    assert "trunk_optimizer" not in error
    assert checkpoint.load_newest(folder / "checkpoints") is not None


def test_interrupted_comparison_says_how_to_go_on(experiment, tmp_path):
    command = [sys.executable, "-m", "pml_nivmf", "compare", experiment, "general.epochs=500", "--dir", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        deadline = time.monotonic() + 120
        while not list(tmp_path.rglob("epoch-*.pt")) and time.monotonic() < deadline:
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
        error = last_words(process)
    assert process.returncode == 130, error
    assert f"the same command goes on with the runs in {tmp_path / 'tiny'}" in error
    assert "Traceback" not in error


def test_killed_comparison_leaves_no_training_behind(experiment, tmp_path):
    command = [sys.executable, "-m", "pml_nivmf", "compare", experiment, "general.epochs=5000", "--dir", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, start_new_session=True) as process:
        deadline = time.monotonic() + 120
        while not list(tmp_path.rglob("epoch-*.pt")) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.kill()
    deadline = time.monotonic() + 60
    while _alive(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _alive(process.pid)


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_interrupt_while_starting_is_no_traceback(monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "load_plugins", interrupted)
    assert cli.main(["run", "glyphs"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_interrupt_while_building_does_not_promise_a_run_to_resume(experiment, tmp_path, monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "build_parts", interrupted)
    assert cli.main(["run", experiment, f"general.run_dir={tmp_path / 'run'}"]) == 130
    error = capsys.readouterr().err
    assert "interrupted before anything was begun" in error
    assert "--resume" not in error


# Lost by others -------------------------------------------------------------------------------------------------


def type_it_where_it_is_lost():
    """As in a library that guards an import with a bare `except:`, or in a destructor."""
    try:
        signal.raise_signal(signal.SIGINT)
    except BaseException:
        return


def test_lost_interrupt_is_raised_again():
    before = signal.getsignal(signal.SIGINT)
    with interrupts.remembered():
        interrupts.check()
        type_it_where_it_is_lost()
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
    interrupts.check()
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("place", ["build_parts", "train_epoch", "_evaluate"])
def test_lost_interrupt_ends_a_run(place, experiment, tmp_path, monkeypatch, capsys):
    original = getattr(run, place)

    def lost(*arguments):
        type_it_where_it_is_lost()
        return original(*arguments)

    monkeypatch.setattr(run, place, lost)
    folder = tmp_path / "run"
    assert cli.main(["run", experiment, f"general.run_dir={folder}"]) == 130
    assert f"pml-nivmf run --resume {folder}" in capsys.readouterr().err
    monkeypatch.undo()
    assert cli.main(["run", "--resume", str(folder)]) == 0


def test_lost_interrupt_ends_a_comparison(experiment, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("pml_nivmf.experiments.compare._epochs_done", lambda job: type_it_where_it_is_lost() or 0)
    began = time.monotonic()
    assert cli.main(["compare", experiment, "general.epochs=5000", "--dir", str(tmp_path)]) == 130
    assert time.monotonic() - began < 60, "waits for trainings"
    assert "the same command goes on" in capsys.readouterr().err


def test_interrupt_while_a_comparison_is_shown_says_how_to_go_on(experiment, tmp_path, monkeypatch, capsys):
    """Its runs are finished: nobody must read that nothing was begun."""
    monkeypatch.setattr("pml_nivmf.experiments.compare.run_jobs", lambda *_: [])
    monkeypatch.setattr(
        "pml_nivmf.commands.compare._show_comparison", lambda *_: os.kill(os.getpid(), signal.SIGINT) or time.sleep(5)
    )
    assert cli.main(["compare", experiment, "--dir", str(tmp_path)]) == 130
    assert "the same command goes on with the runs in" in capsys.readouterr().err


# Any moment -----------------------------------------------------------------------------------------------------


def interrupted(arguments, seconds):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-m", "pml_nivmf", *arguments],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        time.sleep(seconds)
        os.killpg(process.pid, signal.SIGINT)
        error = last_words(process)
    return process.returncode, error


MOMENTS = [0.5, 1.5, 3.0, pytest.param(5.0, marks=pytest.mark.slow), pytest.param(7.0, marks=pytest.mark.slow)]


@pytest.mark.parametrize("seconds", MOMENTS)
@pytest.mark.parametrize("name", ["run", "compare"])
def test_interrupt_at_any_moment_of_the_start(name, seconds, experiment, tmp_path):
    """While libraries are imported and workers started; machines differ in what they do by then."""
    place = f"general.run_dir={tmp_path / 'run'}" if name == "run" else f"--dir={tmp_path}"
    code, error = interrupted([name, experiment, "general.epochs=5000", place], seconds)
    assert code == 130, error
    assert "interrupted" in error
    assert "Traceback" not in error
    assert "the same command" in error or "--resume" in error


def test_interrupts_that_the_shell_ignores_are_ignored(experiment, tmp_path):
    """As in `pml-nivmf compare … &` of a script: Ctrl-C is for what runs in the foreground."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        place, few = f"--dir={tmp_path}", ["--seeds=1", "--losses=proxy_anchor"]
        command = [sys.executable, "-m", "pml_nivmf", "compare", experiment, place, *few]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(command, env=environment, start_new_session=True) as process:
            while process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
                time.sleep(0.2)
    finally:
        signal.signal(signal.SIGINT, before)
    assert process.returncode == 0


def test_caught_interrupt_that_went_through_exec_is_an_exit_code():
    """Python remembers it, and at its end would die of the signal instead."""
    program = """
import signal
from pml_nivmf.experiments import interrupts
try:
    exec("import signal; signal.raise_signal(signal.SIGINT)")
except KeyboardInterrupt:
    interrupts.leave()
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode == 130
