"""The tables in CONFORMANCE.md are those that the suite computes."""

from .table import PAGE, in_page


def test_the_table_is_current():
    text = PAGE.read_text()
    assert text == in_page(text), "run `python -m tests.conformance.table`"
