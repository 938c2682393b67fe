"""The reference page is current, and docstrings describe arguments that exist."""

import inspect
import re

import pytest

from . import reference_page as reference

PUBLIC = [getattr(module, name) for module in reference.SECTIONS.values() for name in reference.public_names(module)]


def test_the_page_is_current():
    assert reference.PAGE.read_text() == reference.page(), "run: python -m tests.reference_page"


@pytest.mark.parametrize("public", PUBLIC, ids=lambda public: public.__name__)
def test_described_arguments_exist(public):
    arguments = (inspect.getdoc(public) or "").partition("Args:\n")[2]
    described = re.findall(r"^ {4}\*{0,2}(\w+):", arguments, flags=re.MULTILINE)
    assert set(described) <= set(reference.parameter_names(public))
