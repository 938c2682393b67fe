"""An experiment whose runs take a second, and Ctrl-C as in a terminal."""

import signal

import pytest

from ..data import fakes


@pytest.fixture(autouse=True)
def interrupts_as_in_a_terminal():
    """Also where the tests themselves were started in the background, with interrupts ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def npz(tmp_path_factory):
    """Gaussian clusters as frozen features: a run takes a second."""
    path = tmp_path_factory.mktemp("features") / "features.npz"
    fakes.features(path)
    return path


@pytest.fixture
def experiment(npz, tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(
        f"""
description: tiny
groups: {{model: features}}
compare: [proxy_anchor, el_nivmf]
seeds: 2
dataset: {{FeatureArrays: {{npz: {npz}}}}}
model: {{embedding_size: 16}}
evaluation: {{metrics: [mean_average_precision_at_r], recall_at: [1, 2]}}
general: {{epochs: 3, batch_size: 8, device: cpu}}
"""
    )
    return str(path)
