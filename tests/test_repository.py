"""What stands at the top of the repository, and that README and CI say the same."""

import configparser
import re
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
TEST_COMMAND = 'pip install -e ".[test]" && pytest'
TOP_LEVEL = {
    "setup.cfg",
    "pyproject.toml",
    "README.md",
    "pml_nivmf",
    "tests",
    "examples",
    "experiment_configs",
    "LICENSE",
    ".gitignore",
    ".ci",
}


def tracked() -> list[str]:
    git = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if git.returncode != 0:
        pytest.skip("not a git checkout")
    return git.stdout.splitlines()


def test_top_level_holds_nothing_else():
    assert {name.split("/")[0] for name in tracked()} == TOP_LEVEL


def test_readme_and_ci_run_the_same_test_command():
    assert TEST_COMMAND in (ROOT / "README.md").read_text()
    assert TEST_COMMAND in (ROOT / ".ci" / "run").read_text().splitlines()


def test_readme_snippets_run():
    """Every python block of the README, one after the other in one namespace."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert len(blocks) >= 3
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), namespace)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_examples_run(example, tmp_path, monkeypatch, capsys):
    """In this process, which has torch already, as a program started in another folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(example)])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    "example", [path for path in EXAMPLES if "torchrun" not in path.read_text()], ids=lambda p: p.name
)
def test_examples_are_notebooks(example):
    """Percent format: text in comments under `# %% [markdown]`, a title first; code in between."""
    begin, *cells = re.split(r"^# %%", example.read_text(), flags=re.MULTILINE)
    texts = [cell for cell in cells if cell.startswith(" [markdown]\n")]
    assert begin == ""
    assert cells[0].startswith(" [markdown]\n# # ")
    assert all(line.startswith("#") for text in texts for line in text.splitlines()[1:] if line)
    assert 2 <= len(texts) < len(cells)
    assert all(cell.startswith("\n") for cell in cells if cell not in texts)


def test_extras_build_on_each_other():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    extras = {
        name: {re.split(r"[>=<\[]", line)[0] for line in value.split()}
        for name, value in config["options.extras_require"].items()
    }
    assert extras["benchmark"] - {"faiss-cpu"} == extras["benchmark-gpu"] - {"faiss-gpu"}
    assert {"pytest", "hypothesis", "mpmath", "scipy", "ruff", "mypy"} <= extras["test"]
    core = {re.split(r"[>=<]", line)[0] for line in config["options"]["install_requires"].split()}
    assert core == {"torch", "pytorch-metric-learning", "numpy"}
