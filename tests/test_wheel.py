"""The package as a user installs it: a wheel in an environment of its own, used from another folder."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .data import fakes

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A new virtual environment with the wheel; a path file adds the dependencies of this environment.

    An editable installation of this environment stays invisible: Python does not read path files of such folders.
    """
    folder = tmp_path_factory.mktemp("wheel")
    source, target = folder / "source", folder / "environment"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(source)], check=True)
    pip = [sys.executable, "-m", "pip"]
    subprocess.run([*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(source)], check=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(target)], check=True)
    subprocess.run([*pip, "--python", str(target), "install", "--quiet", "--no-deps", str(wheel)], check=True)
    (site,) = target.glob("lib/python*/site-packages")
    dependencies = [path for path in sys.path if path.endswith("site-packages")]
    (site / "dependencies.pth").write_text("\n".join(dependencies) + "\n")
    return target


def test_every_file_is_in_the_wheel(environment):
    (site,) = environment.glob("lib/python*/site-packages/pml_nivmf")
    for folder, target in ((ROOT / "pml_nivmf", site), (ROOT / "experiment_configs", site / "experiment_configs")):
        tracked = subprocess.run(["git", "ls-files"], cwd=folder, capture_output=True, text=True, check=True).stdout
        left_out = (".md", ".json", ".csv", "study.py")  # results and the programs that computed them
        needed = [name for name in tracked.splitlines() if not name.endswith(left_out)]
        assert [name for name in needed if not (target / name).exists()] == []


def test_an_installed_package_trains(environment, tmp_path):
    """With its own modules and configs, in a folder outside the checkout."""
    fakes.features(tmp_path / "features.npz")
    overrides = ["model.embedding_size=128", "general.epochs=1", "general.batch_size=8"]
    command = ["pml-nivmf", "run", "table1/features", "dataset.FeatureArrays.npz=features.npz", *overrides]
    done = subprocess.run(
        [environment / "bin" / command[0], *command[1:]],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (summary,) = (tmp_path / "runs").rglob("summary.json")
    assert json.loads(summary.with_name("environment.json").read_text())["git_commit"] is None, "not the checkout"
