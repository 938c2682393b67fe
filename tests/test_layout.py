"""The arrows between folders point one way, and the mathematical packages stay light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "pml_nivmf"
# folder -> (our folders it may import, third-party packages it may import)
ALLOWED = {
    "functional": (set(), {"torch", "numpy"}),
    "distributions": ({"functional"}, {"torch"}),
    "distances": ({"functional", "distributions"}, {"torch", "pytorch_metric_learning"}),
    "losses": ({"functional", "distributions", "distances"}, {"torch", "pytorch_metric_learning"}),
    "metrics": ({"functional"}, {"torch", "numpy", "pytorch_metric_learning"}),
    "data": (
        set(),
        {"torch", "numpy", "torchvision", "PIL", "pytorch_metric_learning", "matplotlib", "fontTools"},
    ),
    "models": (set(), {"torch", "timm", "torchvision", "safetensors"}),
    "experiments": (
        {"functional", "distributions", "distances", "losses", "metrics", "data", "models", "reports", "__init__"},
        {"torch", "numpy", "scipy", "pytorch_metric_learning", "omegaconf", "yaml", "record_keeper", "tqdm"}
        | {"optuna", "rich", "matplotlib"},
    ),
    "commands": ({"experiments", "reports"}, set()),  # each command hands over
    "reports": ({"functional", "distributions", "metrics"}, {"torch", "numpy", "matplotlib", "scipy", "PIL", "yaml"}),
}
LIGHT = ("pml_nivmf", "pml_nivmf.functional", "pml_nivmf.distributions", "pml_nivmf.distances", "pml_nivmf.losses")
HEAVY = ("torchvision", "timm", "faiss", "matplotlib", "omegaconf", "optuna", "record_keeper")


def imports_of(path: Path):
    """(our folder or None, third-party package or None) of every import, lazy ones included."""
    here = path.relative_to(PACKAGE).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield None, alias.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield None, (node.module or "").split(".")[0]
        elif isinstance(node, ast.ImportFrom):
            parts = (*here[: len(here) - node.level + 1], *(node.module or "").split("."))
            yield (parts[0] or None), None


@pytest.mark.parametrize("folder", sorted(p.name for p in PACKAGE.iterdir() if (p / "__init__.py").exists()))
def test_folder_imports_only_what_it_may(folder):
    ours, theirs = ALLOWED[folder]
    for path in sorted((PACKAGE / folder).rglob("*.py")):
        for own, third in imports_of(path):
            assert own is None or own in ours | {folder, "checks", "yaml_limits"}, f"{path} imports {own}"
            assert third is None or third in theirs | sys.stdlib_module_names, f"{path} imports {third}"


@pytest.mark.parametrize("module", LIGHT)
def test_importing_the_library_loads_nothing_heavy(module):
    program = f"import sys, {module}; print([m for m in {HEAVY} if m in sys.modules])"
    blocked = f"import sys; [sys.modules.__setitem__(m, None) for m in {HEAVY}]; "
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
    # PML imports faiss itself where it is installed; without it, everything must still import.
    assert loaded in ("[]", "['faiss']"), loaded
    subprocess.run([sys.executable, "-c", blocked + f"import {module}"], check=True)
