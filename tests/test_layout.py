"""The layout of the package: which folder imports which, how long files are, which file names occur twice."""

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "pml_nivmf"
FILES = sorted(PACKAGE.rglob("*.py"))
MATHS = {"functional", "distributions", "distances", "losses"}
PML = "pytorch_metric_learning"
ANY = None
# folder -> (folders of the package, third-party packages) it may import, beside STANDARD and SHARED
ALLOWED: dict[str, tuple[set[str], set[str] | None]] = {
    "functional": (set(), {"numpy"}),
    "distributions": ({"functional"}, set()),
    "distances": ({"functional", "distributions"}, {PML}),
    "losses": ({"functional", "distributions", "distances"}, {PML}),
    "metrics": ({"functional"}, {"numpy", PML, "sklearn", "scipy"}),
    "inference": ({"functional", "distributions", "metrics"}, {"numpy", PML, "faiss", "safetensors"}),
    "data": (set(), {"numpy", PML, "torchvision", "PIL", "matplotlib"}),
    "models": (set(), {"numpy", "timm", "torchvision", "safetensors", "huggingface_hub"}),
    "experiments": (MATHS | {"metrics", "inference", "data", "models", "reports"}, ANY),
    "reports": ({"functional", "distributions", "metrics"}, ANY),
    "commands": ({"experiments", "reports"}, set()),
    "cli": ({"commands", "experiments", "reports"}, set()),
    "__main__": ({"cli"}, set()),
}
STANDARD = {"torch", *sys.stdlib_module_names}
SHARED = {"checks", "files", "__version__"}  # at the top of the package
HEAVY = ("torchvision", "timm", "faiss", "matplotlib")
# One concept on two layers, such as the formula, the distance and the loss, or a command and what it calls.
SAME_CONCEPT = {
    *("__init__.py", "base.py", "vmf.py", "nivmf.py"),
    "run.py",
}


def imports_of(path: Path):
    """(folder or file of the package or None, third-party package or None) for every import, lazy ones included."""
    here = path.relative_to(PACKAGE).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((None, alias.name.split(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield None, node.module.split(".")[0]
        elif isinstance(node, ast.ImportFrom):
            parts = [*here[: len(here) - node.level + 1], *filter(None, [node.module])]
            yield from ((name.split(".")[0], None) for name in (parts[:1] or [alias.name for alias in node.names]))


def test_imports_point_one_way():
    forbidden = []
    for path in FILES:
        folder = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        ours, third_party = ALLOWED.get(folder, (set(), set()))
        for own, other in imports_of(path):
            if own is not None and own not in ours | SHARED | {folder}:
                forbidden.append(f"{path}: {own}")
            if other is not None and third_party is not ANY and other not in third_party | STANDARD:
                forbidden.append(f"{path}: {other}")
    assert forbidden == []


def test_files_are_short():
    assert [str(path) for path in FILES if len(path.read_text().splitlines()) > 300] == []


def test_file_names_occur_once():
    counts = Counter(path.name for path in FILES)
    assert {name for name, count in counts.items() if count > 1} <= SAME_CONCEPT


def test_the_mathematical_packages_import_nothing_heavy():
    """Neither directly nor through a dependency that needs it: PML imports faiss only where it is installed."""
    blocked = f"import sys; sys.modules.update(dict.fromkeys({HEAVY}))"
    modules = ", ".join(["pml_nivmf", *(f"pml_nivmf.{folder}" for folder in sorted(MATHS))])
    subprocess.run([sys.executable, "-c", f"{blocked}; import {modules}"], check=True)
