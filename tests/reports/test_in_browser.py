"""The report in a real browser: it renders without errors, sorts, follows dark mode, fits the window and prints."""

import pytest

from .browser import needs_browser, open_browser
from .conftest import EVIL

pytestmark = needs_browser
_NAMES = "return [...document.querySelectorAll('table.sortable')[0].tBodies[0].rows].map(row => row.cells[0].innerText)"
_TITLE = "table.sortable thead tr:last-child th:nth-child({})"


@pytest.fixture(scope="module")
def browser(compared):
    with open_browser() as opened:
        opened.open(compared.path)
        yield opened


def test_renders_without_errors(browser):
    assert browser.console() == []
    assert browser.run("return document.title") == "glyphs: report"
    assert browser.run("return document.hacked") is None
    assert browser.run("return [...document.images].every(image => image.complete && image.naturalWidth > 0)")
    heights = browser.run("return [...document.querySelectorAll('figure.plot svg')].map(svg => svg.clientHeight)")
    assert len(heights) == 6
    assert min(heights) > 80
    assert browser.run("return performance.getEntriesByType('resource').length") == 0, "nothing is loaded"


def test_other_scripts_are_blocked(browser):
    browser.run(
        "const s = document.createElement('script'); s.textContent = 'document.hacked = 2'; document.body.append(s)"
    )
    assert browser.run("return document.hacked") is None
    assert any("Content Security Policy" in message for message in browser.console())


def test_sorting(browser):
    recall = _TITLE.format(2)
    state = f"return document.querySelector('{recall}').getAttribute('aria-sort')"
    assert browser.run(_NAMES) == [EVIL, "el_nivmf", "proxy_nca"]
    browser.click(f"{recall} button")
    assert browser.run(_NAMES) == ["proxy_nca", "el_nivmf", EVIL], "the highest first, missing values last"
    assert browser.run(state) == "descending"
    browser.click(f"{recall} button")
    assert browser.run(_NAMES) == ["el_nivmf", "proxy_nca", EVIL], "missing values stay last"
    assert browser.run(state) == "ascending"
    browser.click(f"{_TITLE.format(1)} button")
    assert browser.run(_NAMES) == [EVIL, "el_nivmf", "proxy_nca"]
    assert browser.run(state) is None


@pytest.mark.parametrize("width", [1366, 800, 400])
def test_fits_the_window(browser, width):
    browser.devtools("Emulation.setDeviceMetricsOverride", width=width, height=768, deviceScaleFactor=1, mobile=False)
    assert browser.run("return document.documentElement.scrollWidth") <= width, "only tables scroll sideways"
    browser.devtools("Emulation.clearDeviceMetricsOverride")


@pytest.mark.parametrize(
    ("mode", "medium", "is_dark"), [("light", "", False), ("dark", "", True), ("dark", "print", False)]
)
def test_dark_mode_reaches_text_and_figures_but_not_paper(browser, mode, medium, is_dark):
    features = [{"name": "prefers-color-scheme", "value": mode}]
    browser.devtools("Emulation.setEmulatedMedia", media=medium, features=features)
    colours = browser.run(
        "const of = (e, p) => getComputedStyle(e)[p].match(/\\d+/g).slice(0, 3).map(Number);"
        "const text = document.querySelector('figure.plot svg [id*=text_] use, figure.plot svg [id*=text_] path');"
        "return [of(document.body, 'backgroundColor'), of(document.body, 'color'), of(text, 'fill')]"
    )
    browser.devtools("Emulation.setEmulatedMedia", media="", features=[])
    paper, ink, letters = (sum(colour) / 3 for colour in colours)
    assert paper < 60 if is_dark else paper > 240
    assert min(ink, letters) > 180 if is_dark else max(ink, letters) < 80


def test_nothing_is_folded_on_paper(browser):
    closed = "return document.querySelectorAll('details:not([open])').length"
    before = browser.run(closed)
    assert before > 0
    assert browser.run(f"dispatchEvent(new Event('beforeprint')); {closed}") == 0
    assert browser.run(f"dispatchEvent(new Event('afterprint')); {closed}") == before
