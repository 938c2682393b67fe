"""The package as a user gets it: a wheel, installed into an environment of its own, used in another folder."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from .data import fakes

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A new virtual environment that holds the wheel.

    Its dependencies, gigabytes, are those of this environment, by a path file: what is on that path by an editable
    installation stays out, because path files inside are not read.
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
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return target


def run(environment, tmp_path, *arguments):
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(environment / "bin" / "pml-nivmf"), *arguments]
    return subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)


def test_every_package_is_in_the_wheel(environment):
    (site,) = environment.glob("lib/python*/site-packages/pml_nivmf")
    packages = {str(p.parent.relative_to(ROOT / "pml_nivmf")) for p in (ROOT / "pml_nivmf").rglob("__init__.py")}
    assert packages == {str(p.parent.relative_to(site)) for p in site.rglob("__init__.py")}
    assert (site / "py.typed").exists()


def test_configs_travel_with_the_package(environment, tmp_path):
    done = run(environment, tmp_path, "run", "glyphs", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "Glyphs" in done.stdout
    listed = run(environment, tmp_path, "list").stdout
    assert "panc_el_nivmf" in listed
    assert "table2/cub_r50_512" in listed, "folders inside folders travel too"


def test_an_installed_package_trains(environment, tmp_path):
    """Its own modules, not the checkout's, and a whole run in a folder that knows nothing of either."""
    fakes.features(tmp_path / "features.npz")
    python = str(environment / "bin" / "python")
    program = "import pml_nivmf; print(pml_nivmf.__file__)"
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    where = subprocess.run([python, "-c", program], cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert where.stdout.startswith(str(environment)), where.stderr
    overrides = ["dataset.FeatureArrays.npz=features.npz", "general.epochs=1", "general.batch_size=8"]
    done = run(environment, tmp_path, "run", "table1/features", "model.embedding_size=8", *overrides)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "runs").rglob("summary.json"))
