"""The notebooks beside the examples have the cells of the scripts, and outputs."""

import jupytext
import pytest

from .notebooks import EXAMPLES, RENDERED, notebook_of


@pytest.mark.parametrize("name", RENDERED)
def test_notebooks_are_current(name):
    script, notebook = notebook_of(EXAMPLES / f"{name}.py"), jupytext.read(EXAMPLES / f"{name}.ipynb")
    cells = [[(cell.cell_type, cell.source) for cell in each.cells] for each in (script, notebook)]
    assert cells[0] == cells[1], "run `python -m tests.notebooks`"
    assert any(cell.get("outputs") for cell in notebook.cells)
