"""Every trial of a sweep is run, whatever is killed and however many processes share it."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import optuna
import pytest

from pml_nivmf import cli
from pml_nivmf.experiments import search_space, sweep

from .sweeps import COMBINATIONS, GRID, parameters, search
from .test_compare import wait_for_processes

ROOT = Path(__file__).parents[2]


class Killed(BaseException):
    """Leaves a trial as a kill does: nothing is tidied up."""


@pytest.fixture
def short_heartbeat(monkeypatch):
    for name, value in {"_HEARTBEAT_SECONDS": 1, "_GRACE_SECONDS": 1, "_WAIT_SECONDS": 0.2}.items():
        monkeypatch.setattr(sweep, name, value)


@pytest.mark.parametrize("failure", [Killed, OSError])
def test_a_grid_that_was_stopped_again_and_again_is_completed(write, tmp_path, trainings, short_heartbeat, failure):
    experiment, folder = write(GRID), tmp_path / "sweep"
    finished = []

    def score(config):
        if len(finished) in stops:
            stops.remove(len(finished))
            raise failure
        finished.append(config)
        return 0.5

    trainings.score, stops = score, {0, 1, 6}
    for _ in range(3):
        with pytest.raises(failure):
            search(experiment, folder)
    (result,) = search(experiment, folder)
    trainings.configs = finished
    assert trainings.grid() == COMBINATIONS
    search(experiment, folder)
    assert len(finished) == len(result.trials) == len(COMBINATIONS), "nothing was left to do"


def test_a_trial_killed_before_its_first_heartbeat_is_run_again(write, tmp_path, trainings, short_heartbeat):
    (plan,) = search_space.plan(write(GRID), ["proxy_anchor"], [])
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    sweep.open_study(plan, storage).ask()  # only `optimize` writes heartbeats
    (result,) = sweep.run_searches([plan], tmp_path, storage, False, 1)
    assert len(result.trials) == len(COMBINATIONS)
    assert trainings.grid() == COMBINATIONS


def in_threads(work, arguments):
    threads = [threading.Thread(target=work, args=(argument,)) for argument in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


def test_two_machines_share_a_sweep(write, tmp_path, trainings):
    experiment, storage, results = write(GRID), f"sqlite:///{tmp_path / 'shared.db'}", {}
    sweep.open_storage(storage)
    plans = search_space.plan(experiment, ["proxy_anchor"], [])
    in_threads(lambda n: results.update({n: sweep.run_searches(plans, tmp_path / n, storage, False, 1)}), "ab")
    assert parameters(results["a"][0]) == parameters(results["b"][0])
    assert sorted(set(trainings.grid())) == COMBINATIONS
    assert len(trainings.grid()) <= len(COMBINATIONS) + 1, "both may start the last one"


def test_a_queued_trial_is_taken_once(tmp_path):
    storages = [sweep.open_storage.__wrapped__(f"sqlite:///{tmp_path / 'shared.db'}") for _ in range(4)]
    queue, numbers = optuna.create_study(study_name="queue", storage=storages[0]), []
    for value in range(40):
        queue.enqueue_trial({"x": value})
    in_threads(
        lambda s: numbers.extend(optuna.load_study(study_name="queue", storage=s).ask().number for _ in range(10)),
        storages,
    )
    assert sorted(numbers) == list(range(40))


@pytest.mark.slow
def test_sigkill_then_the_same_command(write, tmp_path):
    folder = tmp_path / "sweep" / "tiny"
    arguments = ["sweep", write(), "--losses", "el_vmf", "--dir", str(folder.parent), "--jobs", "2", "--trials", "12"]
    process = subprocess.Popen([sys.executable, "-m", "pml_nivmf", *arguments], cwd=ROOT, start_new_session=True)
    deadline = time.monotonic() + 300
    while not (folder / "el_vmf" / "trial-0003").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.wait()
    wait_for_processes(process.pid)
    assert cli.main(arguments) == 0
    (loss,) = json.loads((folder / "sweep.json").read_text())["losses"]
    assert loss["finished"] == 12
