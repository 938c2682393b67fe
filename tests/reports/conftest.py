"""One report with figures for all tests that look at it; drawing takes seconds."""

from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from pml_nivmf.reports.page import write_report

from .fake_runs import comparison, write_run

EVIL = "a<img src=x onerror=document.hacked=1>"


class Page:
    """A report. It is well-formed XML, or it could not be parsed."""

    def __init__(self, path):
        self.path, self.text = path, path.read_text(encoding="utf-8")
        self.elements = list(ElementTree.fromstring(self.text).iter())

    def attributes(self, tag):
        return [element.attrib for element in self.elements if element.tag == tag]

    def texts(self, tag):
        return [" ".join("".join(element.itertext()).split()) for element in self.elements if element.tag == tag]


def report(*folders):
    return Page(write_report(folders, folders[0] / "out" / "report.html"))


@pytest.fixture(scope="session")
def compared(tmp_path_factory):
    """proxy_nca has the highest R@1; a third loss, whose strings contain HTML, has none."""
    folder = comparison(tmp_path_factory.mktemp("runs") / "glyphs")
    loss, command = {"</pre><script>a</script>": {"x": "<b>&amp;</b>"}}, "run </code><script>b</script>"
    write_run(folder / EVIL / "seed-0", loss, recall=None, artifacts=False, command=command, python="3.12")
    return report(folder)


@pytest.fixture
def undrawn(monkeypatch):
    """Skip the drawing in tests that do not look at figures."""
    monkeypatch.setattr(Figure, "savefig", lambda figure, buffer, **options: buffer.write("<svg></svg>"))
