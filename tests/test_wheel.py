"""The package as a user gets it: built into a wheel, unpacked elsewhere, without the checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with the wheel's content, first on the path; the environment's other packages serve as they are."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(source)], check=True)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(source)]
    subprocess.run(command, check=True)
    (wheel,) = folder.glob("*.whl")
    target = folder / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target


def run(site, tmp_path, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "-m", "pml_nivmf", *arguments]
    return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)


def test_every_package_is_in_the_wheel(site):
    packages = {str(p.parent.relative_to(ROOT / "pml_nivmf")) for p in (ROOT / "pml_nivmf").rglob("__init__.py")}
    assert packages == {
        str(p.parent.relative_to(site / "pml_nivmf")) for p in (site / "pml_nivmf").rglob("__init__.py")
    }
    assert (site / "pml_nivmf" / "py.typed").exists()


def test_configs_travel_with_the_package(site, tmp_path):
    done = run(site, tmp_path, "run", "glyphs", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "Glyphs" in done.stdout
    assert "panc_el_nivmf" in run(site, tmp_path, "list").stdout
