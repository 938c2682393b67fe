"""The report in a real browser: renders without a complaint, sorts, follows dark mode, fits a laptop, prints whole."""

import pytest

from pml_nivmf.reports.page import write_report

from .browser import needs_browser, open_browser
from .fake_runs import comparison, write_run

pytestmark = needs_browser
_EVIL = "a<img src=x onerror=document.hacked=1>"
_NAMES = "return [...document.querySelectorAll('table.sortable')[0].tBodies[0].rows].map(row => row.cells[0].innerText)"
_FIRST = "table.sortable thead tr:last-child th:nth-child({})"


@pytest.fixture(scope="module")
def browser():
    with open_browser() as found:
        yield found


@pytest.fixture(scope="module")
def page(tmp_path_factory, browser):
    """proxy_nca has the highest R@1, one run has none."""
    folder = comparison(tmp_path_factory.mktemp("runs") / "glyphs")
    write_run(folder / _EVIL / "seed-0", {"L2": {}}, recall=None, artifacts=False)
    path = write_report([folder], folder / "report.html")
    browser.open(path)
    return path


def test_renders_without_a_complaint(browser, page):
    assert browser.console() == []
    assert browser.run("return document.title") == "glyphs: report"
    assert browser.run("return document.hacked") is None
    assert browser.run("return [...document.images].every(image => image.complete && image.naturalWidth > 0)")
    heights = browser.run("return [...document.querySelectorAll('figure.plot svg')].map(svg => svg.clientHeight)")
    assert len(heights) >= 6
    assert min(heights) > 80
    assert browser.run("return performance.getEntriesByType('resource').length") == 0, "nothing was asked for"


def test_the_policy_is_alive(browser, page):
    """What keeps foreign scripts out works: a script added later is blocked, and the browser says so."""
    browser.run(
        "const s = document.createElement('script'); s.textContent = 'document.hacked = 2'; document.body.append(s)"
    )
    assert browser.run("return document.hacked") is None
    assert any("Content Security Policy" in message for message in browser.console())


def test_sorting_by_a_click_and_by_the_keyboard(browser, page):
    assert browser.run(_NAMES) == [_EVIL, "el_nivmf", "proxy_nca"]
    recall = _FIRST.format(2)
    state = f"return document.querySelector('{recall}').getAttribute('aria-sort')"
    browser.click(f"{recall} button")
    assert browser.run(_NAMES) == ["proxy_nca", "el_nivmf", _EVIL], "the highest first, the missing last"
    assert browser.run(state) == "descending"
    browser.type(f"{recall} button", "\ue007")  # Enter
    assert browser.run(_NAMES) == ["el_nivmf", "proxy_nca", _EVIL], "the missing stays last"
    assert browser.run(state) == "ascending"
    browser.click(f"{_FIRST.format(1)} button")
    assert browser.run(_NAMES) == [_EVIL, "el_nivmf", "proxy_nca"]
    assert browser.run(state) is None
    assert browser.console() == []


@pytest.mark.parametrize("width", [1366, 800, 400])
def test_fits_the_window(browser, page, width):
    browser.devtools("Emulation.setDeviceMetricsOverride", width=width, height=768, deviceScaleFactor=1, mobile=False)
    assert browser.run("return document.documentElement.scrollWidth") <= width, "only tables scroll sideways"
    browser.devtools("Emulation.clearDeviceMetricsOverride")


def test_dark_mode_reaches_text_and_figures(browser, page):
    colours = (
        "const of = (e, p) => getComputedStyle(e)[p].match(/\\d+/g).slice(0, 3).map(Number);"
        "const text = document.querySelector('figure.plot svg [id*=text_] use, figure.plot svg [id*=text_] path');"
        "return [of(document.body, 'backgroundColor'), of(document.body, 'color'), of(text, 'fill')]"
    )
    seen = {}
    for mode in ("light", "dark"):
        browser.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": mode}])
        seen[mode] = [sum(colour) / 3 for colour in browser.run(colours)]
    browser.devtools("Emulation.setEmulatedMedia", features=[])
    paper, ink, letters = seen["light"]
    assert paper > 240
    assert max(ink, letters) < 80
    paper, ink, letters = seen["dark"]
    assert paper < 60
    assert min(ink, letters) > 180


def test_paper_is_light_and_nothing_is_folded(browser, page):
    browser.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    browser.devtools("Emulation.setEmulatedMedia", media="print")
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    kept_whole = "return [...document.querySelectorAll('.wide')].every(e => getComputedStyle(e).breakInside == 'avoid')"
    assert browser.run(kept_whole), "no table's head at the foot of a page"
    browser.devtools("Emulation.setEmulatedMedia", media="", features=[])
    closed = "return document.querySelectorAll('details:not([open])').length"
    before = browser.run(closed)
    assert before > 0
    assert browser.run(f"dispatchEvent(new Event('beforeprint')); {closed}") == 0
    assert browser.run(f"dispatchEvent(new Event('afterprint')); {closed}") == before


def test_contents_lead_there(browser, page):
    browser.click("nav a[href='#configuration']")
    assert 0 <= browser.run("return document.getElementById('configuration').getBoundingClientRect().top") < 700
    assert browser.run("return scrollY") > 1000
