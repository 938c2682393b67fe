"""The package as a user installs it: a wheel, used from a folder outside the checkout."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .data import fakes

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder that the wheel is installed to; on PYTHONPATH, it comes before an editable installation."""
    folder = tmp_path_factory.mktemp("wheel")
    source, target = folder / "source", folder / "target"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(source)], check=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(source)]
    subprocess.run(pip, check=True)
    return target


def test_every_file_is_in_the_wheel(installed):
    site = installed / "pml_nivmf"
    for folder, target in ((ROOT / "pml_nivmf", site), (ROOT / "experiment_configs", site / "experiment_configs")):
        tracked = subprocess.run(["git", "ls-files"], cwd=folder, capture_output=True, text=True, check=True).stdout
        left_out = (".md", ".json", ".csv", "study.py")  # results and the programs that computed them
        needed = [name for name in tracked.splitlines() if not name.endswith(left_out)]
        assert [name for name in needed if not (target / name).exists()] == []


def test_an_installed_package_trains(installed, tmp_path):
    """With its own command, modules and configs."""
    fakes.features(tmp_path / "features.npz")
    overrides = ["model.embedding_size=128", "general.epochs=1", "general.batch_size=8"]
    command = ["run", "table1/features", "dataset.FeatureArrays.npz=features.npz", *overrides]
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    subprocess.run([installed / "bin" / "pml-nivmf", *command], cwd=tmp_path, env=environment, check=True)
    (summary,) = (tmp_path / "runs").rglob("summary.json")
    assert json.loads(summary.with_name("environment.json").read_text())["git_commit"] is None, "not the checkout"
