"""The reference page is what signatures, docstrings and objects say now, and docstrings say what objects do."""

import inspect
import re

import pytest

from pml_nivmf import distances, distributions, losses, metrics

from . import reference_page as reference

CLASSES = [
    getattr(module, name)
    for module in (distances, distributions, losses, metrics)
    for name in reference.public_names(module)
    if inspect.isclass(getattr(module, name))
]


def test_the_page_is_current():
    assert reference.PAGE.read_text() == reference.page(), "run: python -m tests.reference_page"


@pytest.mark.parametrize("public", CLASSES, ids=lambda c: c.__name__)
def test_no_argument_is_described_that_does_not_exist(public):
    _, _, arguments = inspect.getdoc(public).partition("Args:\n")
    described = re.findall(r"^ {4}\*{0,2}(\w+):", arguments, flags=re.MULTILINE)
    assert set(described) <= set(reference.parameter_names(public))


@pytest.mark.parametrize("name", sorted(set(reference.OBJECTS) - {"JointProxyLoss"}))
def test_docstrings_name_the_defaults(name):
    loss, text = reference.OBJECTS[name](), " ".join(inspect.getdoc(getattr(losses, name)).split())
    assert f"Default distance: {reference.default_distance(loss)}." in text
    assert f"Default reducer: {type(loss.reducer).__name__}." in text
    assert reference.reducer_input(loss) == {"loss": "element"}
    assert "Reducer input: loss per element." in text


def test_a_joint_loss_arrives_reduced():
    assert reference.reducer_input(reference.OBJECTS["JointProxyLoss"]()) == {"loss": "already_reduced"}


def test_parsing_a_docstring():
    doc = "What.\n\n    a = b\n\nArgs:\n    x: one\n        more.\n    **kwargs: rest.\n\nLast: words."
    expected = ("What.\n\n    a = b", [("x", "one\n  more."), ("**kwargs", "rest.")], "Last: words.")
    assert reference.parse(doc, ["x", "kwargs"]) == expected
