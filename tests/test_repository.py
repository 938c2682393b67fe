"""What users copy from the repository works: snippets and examples; and no file names a path of one machine."""

import re
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
OTHERS = ("CONTRIBUTING.md", "REFERENCE.md")  # one has a test of its own, the other has signatures
PAGES = [page for page in (ROOT / "README.md", *sorted(ROOT.glob("*/*.md"))) if page.name not in OTHERS]


def test_no_file_holds_a_path_of_one_machine():
    pattern = "/(home|root|Users|work|opt|mnt)/[A-Za-z0-9_]"
    git = subprocess.run(["git", "grep", "-nIE", pattern], cwd=ROOT, capture_output=True, text=True)
    if git.returncode > 1:
        pytest.skip("not a git checkout")
    assert git.stdout == ""


@pytest.mark.parametrize("page", PAGES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_snippets_run(page):
    """Every python block of the page, one after the other in one namespace."""
    namespace: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL):
        exec(compile(block, page.name, "exec"), namespace)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_examples_run(example, tmp_path, monkeypatch, capsys):
    """In this process, which has imported torch already, as a program started in another folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(example)])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out
