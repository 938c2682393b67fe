"""An experiment whose runs take a second."""

import json
import signal
from pathlib import Path

import numpy as np
import pytest

from pml_nivmf.experiments import compare, run

from ..data import fakes
from . import sweeps


@pytest.fixture(autouse=True)
def processes_receive_interrupts():
    """Also if the tests were started in the background, where shells ignore Ctrl-C."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)


@pytest.fixture(scope="session")
def npz(tmp_path_factory):
    """Gaussian clusters as frozen features."""
    path = tmp_path_factory.mktemp("features") / "features.npz"
    fakes.features(path)
    return path


@pytest.fixture(scope="session")
def experiment(npz, tmp_path_factory):
    path = tmp_path_factory.mktemp("experiment") / "tiny.yaml"
    path.write_text(
        f"""
description: tiny
groups: {{model: features, schedule: cosine}}
compare: [proxy_anchor, el_nivmf]
seeds: 2
dataset: {{FeatureArrays: {{npz: {npz}}}}}
model: {{embedding_size: 16}}
evaluation: {{metrics: [mean_average_precision_at_r], recall_at: [1, 2], batch_size: 8}}
general: {{epochs: 3, batch_size: 8, device: cpu}}
"""
    )
    return str(path)


@pytest.fixture(scope="session")
def results():
    """A function that returns everything a run computed, except the time it took."""

    def read(folder):
        summary = json.loads((folder / "summary.json").read_text())
        with np.load(folder / "test_items.npz") as items:
            arrays = {name: items[name].tobytes() for name in items}
        summary.pop("seconds")
        return summary, json.loads((folder / "history.json").read_text()), arrays

    return read


class Killed(BaseException):
    """Ends a run like a kill: no `except Exception` sees it."""


@pytest.fixture
def kill_after(monkeypatch):
    """A context in which runs end right after the checkpoint of an epoch."""
    from pml_nivmf.experiments import checkpoint

    class Context:
        def __init__(self, epoch):
            self.epoch, self.save = epoch, checkpoint.save

        def __enter__(self):
            def save_and_die(parts, progress, folder):
                self.save(parts, progress, folder)
                if len(progress.history) == self.epoch:
                    raise Killed

            monkeypatch.setattr(checkpoint, "save", save_and_die)

        def __exit__(self, kind, *_):
            monkeypatch.setattr(checkpoint, "save", self.save)
            assert kind is Killed
            return True

    return Context


# Sweeps ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def write(experiment, tmp_path):
    """A function that writes the experiment with a sweep section and returns its path."""

    def write(section=sweeps.SWEEP):
        text = Path(experiment).read_text().replace("el_nivmf", "el_vmf").replace(", schedule: cosine", "")
        (tmp_path / "tiny.yaml").write_text(text + section)
        return str(tmp_path / "tiny.yaml")

    return write


@pytest.fixture
def in_process(monkeypatch):
    """No worker processes, which take seconds to import torch."""

    def run_here(work, tasks, workers, plugins=(), progress=lambda: None):
        for task in tasks:
            work(task)
            progress()

    monkeypatch.setattr(compare, "in_processes", run_here)


@pytest.fixture
def trainings(monkeypatch, in_process):
    trainings = sweeps.Trainings()
    monkeypatch.setattr(run, "start", trainings)
    return trainings
