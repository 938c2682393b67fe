"""The table in README is the one that the suite computes."""

from .table import README, in_readme


def test_the_table_is_current():
    text = README.read_text()
    assert text == in_readme(text), "run `python -m tests.conformance.table`"
