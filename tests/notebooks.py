"""Write notebooks with outputs from examples in jupytext's percent format: `python -m tests.notebooks`."""

import os
from pathlib import Path

import jupytext
from nbclient import NotebookClient
from nbformat import NotebookNode

EXAMPLES = Path(__file__).parents[1] / "examples"
RENDERED = ("01_swap_the_loss", "04_uncertainty_at_inference", "10_enrol_new_classes")


def notebook_of(script: Path) -> NotebookNode:
    """The cells of the script, without outputs. They are numbered, so that a new run changes outputs only."""
    notebook = jupytext.read(script)
    notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
    return notebook


def render(script: Path) -> None:
    notebook = notebook_of(script)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # other numbers of threads give other last digits
    options = {"timeout": 600, "record_timing": False, "resources": {"metadata": {"path": script.parent}}}
    NotebookClient(notebook, **options).execute(env=environment)
    for cell in notebook.cells:
        if cell.cell_type == "code":  # progress bars are not worth keeping
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    jupytext.write(notebook, script.with_suffix(".ipynb"))


if __name__ == "__main__":
    for name in RENDERED:
        render(EXAMPLES / f"{name}.py")
