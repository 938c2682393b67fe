"""What users copy from the repository works: README snippets and examples; and no file names a path of one machine."""

import re
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def test_no_file_holds_a_path_of_one_machine():
    pattern = "/(home|root|Users|work|opt|mnt)/[A-Za-z0-9_]"
    git = subprocess.run(["git", "grep", "-nIE", pattern], cwd=ROOT, capture_output=True, text=True)
    if git.returncode > 1:
        pytest.skip("not a git checkout")
    assert git.stdout == ""


def test_readme_snippets_run():
    """Every python block of the README, one after the other in one namespace."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert len(blocks) >= 3
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), namespace)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_examples_run(example, tmp_path, monkeypatch, capsys):
    """In this process, which has imported torch already, as a program started in another folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(example)])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out
