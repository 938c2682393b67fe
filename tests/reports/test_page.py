"""The report as a document: complete, self-contained, safe whatever runs are called."""

import base64
import html.parser
import io
import json
import re
from collections import Counter

import numpy as np
import pytest
import yaml
from PIL import Image

from pml_nivmf import cli
from pml_nivmf.reports import run_folders, svg
from pml_nivmf.reports.html import image_uri, join, tag
from pml_nivmf.reports.page import write_report
from pml_nivmf.reports.page.values import MISSING, described, differing, flow
from pml_nivmf.reports.run_folders import find
from pml_nivmf.reports.tables import Estimate

from .fake_runs import comparison, write_run

_VOID = {"img", "meta", "br"}
EVIL = "<script>document.hacked=1</script>".replace("/", "\N{FRACTION SLASH}")  # a folder's name has no slash


class Page(html.parser.HTMLParser):
    """Elements with their attributes and text; fails where tags do not close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict, list[str]]] = []
        self._open: list[tuple[str, dict, list[str]]] = []
        self.feed(text)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag, attrs):
        element = (tag, dict(attrs), [])
        self.elements.append(element)
        if tag not in _VOID:
            self._open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), []))

    def handle_endtag(self, tag):
        assert self._open.pop()[0] == tag

    def handle_data(self, data):
        for _, _, text in self._open:
            text.append(data)

    def all(self, tag, **attributes):
        return [e for e in self.elements if e[0] == tag and attributes.items() <= e[1].items()]

    def texts(self, tag):
        return ["".join(text) for _, _, text in self.all(tag)]


@pytest.fixture
def undrawn(monkeypatch):
    """Where figures are not what is looked at: drawing takes most of the time."""
    monkeypatch.setattr(svg, "inline_svg", lambda figure, name, alt: tag("svg", role="img", aria_label=alt))


def report(folder, *more):
    text = write_report([folder, *more], folder / "out" / "report.html").read_text(encoding="utf-8")
    return Page(text), text


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    return report(comparison(tmp_path_factory.mktemp("runs") / "glyphs"))


# the document ---------------------------------------------------------------------------------------------------


def test_nothing_comes_from_elsewhere(compared):
    page, text = compared
    for name, attributes, _ in page.elements:
        for key in ("src", "href", "srcset", "data", "action"):
            assert attributes.get(key, "#").startswith(("#", "data:image/")), (name, attributes)
    assert not page.all("link")
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    assert len(text) < 5e6
    (policy,) = [a["content"] for _, a, _ in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    assert "default-src 'none'" in policy


def test_contents_lead_to_every_section(compared):
    page, _ = compared
    ids = [a["id"] for _, a, _ in page.elements if "id" in a]
    assert not [name for name, count in Counter(ids).items() if count > 1], "ids are unique, also those of figures"
    links = [a["href"][1:] for _, a, _ in page.all("a")]
    assert set(links) <= set(ids)
    sections = [a["aria-labelledby"] for _, a, _ in page.all("section")]
    assert links[1:] == sections
    assert {"results", "training", "uncertainty", "images", "configuration", "environment", "reproduce"} < set(sections)


def test_references_inside_figures_hold(compared):
    page, text = compared
    ids = {a["id"] for _, a, _ in page.elements if "id" in a}
    used = re.findall(r'(?:href="#|url\(#)([^")]+)', text)
    assert len(used) > 100
    assert set(used) <= ids


def test_pictures_say_what_they_show(compared):
    page, _ = compared
    assert page.all("img")
    assert all(attributes.get("alt") for _, attributes, _ in page.all("img"))
    plots = [a for _, a, _ in page.all("svg")]
    assert len(plots) >= 6
    assert all(a["role"] == "img" and len(a["aria-label"]) > 40 for a in plots)
    assert any("proxy_nca 70.5" in a["aria-label"] for a in plots), "numbers for those who do not see the bars"


def test_results_are_estimates_over_seeds(compared):
    page, _ = compared
    assert "Test metrics in percent, mean ± deviation [95% interval]; the best in bold" in page.texts("caption")
    assert "el_nivmf, proxy_nca; 2 seeds each" in page.texts("dd")
    cells = ["".join(text) for _, _, text in page.all("td")]
    mean, interval = str(Estimate.of([0.7, 0.71])).split(" [")
    assert f"{mean}[{interval}" in cells
    values = [a["data-value"] for _, a, _ in page.all("td") if "data-value" in a]
    assert repr(float(np.mean([0.7, 0.71]))) in values
    bold = page.texts("strong")
    assert mean in bold, "the highest R@1"
    assert any(str(Estimate.of([0.7, 0.71])) in text for text in bold), "and in the sentence at the top"


def test_undefined_values_and_reasons_are_said(compared):
    page, _ = compared
    assert "No calibration: FakeLoss trains no softmax over its proxies." in page.texts("p")
    captions = page.texts("caption")
    assert any(text.startswith("40 test items, clean and degraded (crop, occlude, blur, noise)") for text in captions)
    groups = [a for _, a, _ in page.all("th", scope="colgroup")]
    assert [int(a["colspan"]) for a in groups] == [3, 3, 3, 2, 3], "Spearman is undefined throughout: no columns"


def test_what_the_calibration_was_measured_on_is_said(tmp_path, compared, undrawn):
    page, _ = compared
    trained = [text for text in page.texts("p") if "a calibration of the fit, not of new images" in text]
    assert len(trained) == 1
    assert any("on training images, without augmentation, ECE" in text for text in page.texts("caption"))
    folder = write_run(tmp_path / "run", {"VMFProxyLoss": {}})
    summary = json.loads((folder / "summary.json").read_text())
    summary["uncertainty"]["calibration"]["images"] = "images of the training classes that training did not see"
    (folder / "summary.json").write_text(json.dumps(summary))
    page, text = report(folder)
    assert "calibration of the fit" not in text
    assert any("that training did not see, ECE, accuracy" in text for text in page.texts("caption"))


def test_differences_of_settings_are_marked(compared):
    page, _ = compared
    cells = page.texts("td")
    assert "NonIsotropicVMFLoss (estimator: analytic)" in cells
    assert "ProxyNCALoss" in cells
    marked = page.texts("mark")
    assert "loss:" in marked
    assert "  NonIsotropicVMFLoss:" in marked
    assert not any("seed" in text or "epochs" in text for text in marked)


def test_the_whole_configuration_is_yaml(tmp_path, undrawn):
    odd = {"evaluation": {"metrics": ["a: b", "#c"], "every": None, "nested": {"x": {}, "y": [1, 2.5], "z": "null"}}}
    folder = write_run(tmp_path / "run", {"ProxyNCALoss": {"scale": 1e-5, "name": "yes"}}, config=odd, artifacts=False)
    page, _ = report(folder)
    assert yaml.safe_load(page.texts("pre")[0]) == yaml.safe_load((folder / "config.yaml").read_text())


def test_commands_to_reproduce(compared):
    page, _ = compared
    code = page.texts("pre")
    assert "pml-nivmf compare glyphs" in code
    assert any(text.startswith("pml-nivmf report ") and text.endswith("glyphs") for text in code)


def test_a_run_alone_brings_its_plugins(tmp_path, undrawn):
    command = "pml-nivmf run mine.yaml --plugin mine.py '--plugin=my other.py' general.epochs=2"
    page, _ = report(write_run(tmp_path / "run", {"Mine": {}}, command=command, artifacts=False))
    alone = "pml-nivmf run config.yaml --plugin mine.py --plugin 'my other.py' general.run_dir=again"
    assert alone in page.texts("pre")
    page, _ = report(write_run(tmp_path / "odd", {"Mine": {}}, command="pml-nivmf run 'mine", artifacts=False))
    assert "pml-nivmf run 'mine" in page.texts("pre")


def test_the_command_of_this_page_names_what_was_asked_for(tmp_path, undrawn, monkeypatch):
    """Not the folder around it, which may hold more."""
    folder = comparison(tmp_path / "glyphs", seeds=2, artifacts=False)
    write_run(folder / "third" / "seed-0", {"L2": {}}, artifacts=False)
    monkeypatch.chdir(tmp_path)
    page, _ = report(folder / "proxy_nca" / "seed-1", folder / "third")
    assert "pml-nivmf report glyphs/proxy_nca/seed-1 glyphs/third" in page.texts("pre")
    seeds = [folder / "proxy_nca" / f"seed-{seed}" for seed in (0, 1)]
    page, _ = report(*seeds, folder / "el_nivmf")
    assert "pml-nivmf report glyphs/proxy_nca glyphs/el_nivmf" in page.texts("pre"), "in their order, and no longer"
    page, _ = report(folder)
    assert "pml-nivmf report glyphs" in page.texts("pre")


# images ---------------------------------------------------------------------------------------------------------


def decode(uri):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))


def test_images_are_of_the_items_they_say(compared):
    page, _ = compared
    found = [
        (a["alt"], decode(a["src"])) for _, a, _ in page.all("img") if "test image" in a["alt"] and "%" not in a["alt"]
    ]
    assert len(found) > 40
    for alt, pixels in found:
        assert (pixels == int(re.search(r"test image (\d+)", alt)[1])).all()


def test_neighbours_are_marked_right_and_wrong(compared):
    page, _ = compared
    marks = Counter(a["class"] for _, a, _ in page.all("img") if "class" in a)
    # of two losses, queries 0 (class 0, all neighbours of it) and 9 (class 1, likewise: 10 … 14)
    assert marks == {"query": 4, "right": 20}
    assert "0.90 ✓" in page.texts("figcaption")


def test_photographs_are_jpeg_and_grey_ones_exact():
    grey = np.random.default_rng(0).integers(0, 256, (1, 9, 7), dtype=np.uint8)
    assert image_uri(grey).startswith("data:image/png")
    assert np.array_equal(decode(image_uri(grey)), grey[0])
    photo = np.full((3, 16, 16), 100, dtype=np.uint8)
    photo[0] = 200
    assert image_uri(photo).startswith("data:image/jpeg")
    assert np.abs(decode(image_uri(photo)).astype(int) - [200, 100, 100]).max() < 5


# safety ---------------------------------------------------------------------------------------------------------


def test_names_cannot_inject(tmp_path):
    folder = tmp_path / '"><img src=x onerror=alert(1)>'
    loss = {"</pre><script>a</script>": {"x": "<b>&amp;</b>"}}
    for name in (EVIL, "a&b 'c'"):
        write_run(folder / name / "seed-0", loss, command="run </code><script>b</script>")
    page, text = report(folder)
    assert len(page.all("script")) == 1
    assert text.count("<script>") == 1
    assert not page.all("b")
    assert not [a for _, a, _ in page.elements if any(key.startswith("on") for key in a)]
    assert EVIL in page.texts("th")
    assert "a&b 'c'" in page.texts("th")
    assert folder.name in page.texts("h1")
    assert "run </code><script>b</script>" in page.texts("pre")


def test_only_what_tag_made_is_markup():
    assert tag("p", "<", tag("b", "&"), None, ["x", tag("br")]) == "<p>&lt;<b>&amp;</b>x<br></p>"
    assert tag("a", href='"', class_="c", hidden=True, open=False, id=None) == '<a href="&quot;" class="c" hidden></a>'
    assert join("a<", tag("i", "b")) == "a&lt;<i>b</i>"


# which runs -----------------------------------------------------------------------------------------------------


def test_one_run_alone(tmp_path, undrawn):
    folder = write_run(tmp_path / "glyphs" / "el_vmf" / "seed-3", {"VMFProxyLoss": {}}, seed=3)
    page, _ = report(folder)
    assert page.texts("h1") == ["glyphs el_vmf"]
    assert "What was run" in page.texts("h2")
    assert "el_vmf; 1 seed" in page.texts("dd")
    assert "Test metrics in percent" in page.texts("caption")
    assert not any("±" in text for text in page.texts("dd")), "nothing is said of what is not there"
    assert "50.00" in page.texts("td")
    assert not page.texts("small"), "one seed has no interval"


def test_runs_without_artifacts_have_a_report(tmp_path, undrawn):
    """Of an older version."""
    page, _ = report(comparison(tmp_path / "old", artifacts=False))
    titles = page.texts("h2")
    assert "Results" in titles
    assert "Uncertainty" not in titles
    assert "Images" not in titles


def test_features_have_bars_instead_of_curves_and_no_images(tmp_path):
    page, _ = report(comparison(tmp_path / "cars", images=False))
    assert "Images" not in page.texts("h2")
    assert any("Items whose norm is lower when degraded" in text for text in page.texts("figcaption"))


def test_data_sets_are_not_compared_without_a_warning(tmp_path, undrawn):
    comparison(tmp_path / "both" / "glyphs", seeds=1)
    comparison(tmp_path / "both" / "cars", seeds=1, images=False, config={"dataset": {"FeatureArrays": {"npz": "x"}}})
    page, _ = report(tmp_path / "both")
    assert any("cannot be compared" in text for text in page.texts("p"))
    assert "glyphs/el_nivmf" in page.texts("th")


def test_missing_recall_is_a_dash(tmp_path, undrawn):
    folder = comparison(tmp_path / "r", seeds=1, artifacts=False)
    write_run(folder / "broken" / "seed-0", {"L2": {}}, recall=None, artifacts=False)
    page, _ = report(folder)
    assert "–" in page.texts("td")


def test_groups_and_names(tmp_path):
    comparison(tmp_path / "a", seeds=11)
    write_run(tmp_path / "a" / "unfinished" / "seed-0", {"L": {}})
    (tmp_path / "a" / "unfinished" / "seed-0" / "summary.json").unlink()
    trial = write_run(tmp_path / "a" / "trial-1", {"L": {}})
    (trial / "summary.json").write_text(json.dumps({"status": "pruned"}))
    found = find([tmp_path / "a"])
    assert [group.name for group in found.groups] == ["el_nivmf", "proxy_nca"]
    assert [run.seed for run in found.groups[0].runs] == list(range(11)), "10 behind 9"
    assert found.left_out == {"unfinished": 1, "trials of a sweep, which are not tested": 1}
    folders = [tmp_path / "a" / "proxy_nca" / "seed-1", tmp_path / "a" / "el_nivmf", tmp_path / "a" / "proxy_nca"]
    assert [(g.name, len(g.runs)) for g in find(folders).groups] == [("proxy_nca", 11), ("el_nivmf", 11)]
    assert find([trial.parent / "el_nivmf"]).name == "a el_nivmf"


def test_what_cannot_be_reported_is_said(tmp_path, undrawn, capsys):
    assert cli.main(["report", str(tmp_path / "nowhere")]) == 2
    assert "nowhere is no run folder and holds none" in capsys.readouterr().err
    folder = write_run(tmp_path / "run", {"L": {}})
    (folder / "history.json").write_text("[{")
    assert cli.main(["report", str(folder)]) == 2
    assert "history.json cannot be read" in capsys.readouterr().err
    (folder / "summary.json").unlink()
    assert cli.main(["report", str(folder)]) == 2
    assert "no finished run with test results" in capsys.readouterr().err


MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 12))


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("config.yaml", MERGES, "more than 20,000 entries"),
        ("config.yaml", "loss: &a {b: *a}", "refers to nothing before it, or to what it is in"),
        ("summary.json", "[" * 100_000, "recursion"),
        ("test_items.npz", "no archive", "not a zip file"),
    ],
    ids=["bomb", "itself", "deep", "archive"],
)
def test_run_folders_from_anywhere_do_not_fill_memory(tmp_path, undrawn, capsys, name, content, reason):
    folder = write_run(tmp_path / "run", {"L": {}})
    (folder / name).write_text(content)
    assert cli.main(["report", str(folder)]) == 2
    error = capsys.readouterr().err
    assert f"{name} cannot be read" in error
    assert reason in error


def test_a_link_as_report_does_not_overwrite_what_it_leads_to(tmp_path, undrawn, capsys):
    folder, precious = write_run(tmp_path / "run", {"L": {}}), tmp_path / "precious"
    precious.write_text("kept")
    (folder / "report.html").symlink_to(precious)
    assert cli.main(["report", str(folder)]) == 2
    assert "report.html is a link, which is not followed" in capsys.readouterr().err
    assert precious.read_text() == "kept"
    assert cli.main(["report", str(folder), "--out", str(tmp_path / "page.html")]) == 0


def test_arrays_that_unpack_to_gigabytes_are_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(run_folders, "_MOST_BYTES", 10**5)
    np.savez_compressed(tmp_path / "test_items.npz", zeros=np.zeros(10**5))
    with pytest.raises(ValueError, match=r"test_items\.npz cannot be read: it holds more than 100,000 bytes"):
        _ = run_folders.Run(tmp_path).items


def test_command_prints_where_it_went(tmp_path, undrawn, capsys, monkeypatch):
    folder = comparison(tmp_path / "glyphs", seeds=1, artifacts=False)
    assert cli.main(["report", str(folder)]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "report.html")
    out = tmp_path / "deep" / "page.html"
    assert cli.main(["report", str(folder / "el_nivmf"), str(folder / "proxy_nca"), "--out", str(out)]) == 0
    assert out.read_text().startswith("<!DOCTYPE html>")


# settings -------------------------------------------------------------------------------------------------------


def test_differences():
    first = {"loss": {"A": {"x": 1}}, "general": {"seed": 0, "epochs": 3}, "model": {"trunk": {"T": {"w": 1, "d": 2}}}}
    second = {"loss": {"B": {}}, "general": {"seed": 1, "epochs": 3}, "model": {"trunk": {"T": {"w": 4}}}}
    assert differing([first, second]) == {
        ("loss",): [{"A": {"x": 1}}, {"B": {}}],
        ("model", "trunk", "T", "w"): [1, 4],
        ("model", "trunk", "T", "d"): [2, MISSING],
    }
    assert differing([first, first]) == {}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"Adam": {"lr": 0.1}}, "Adam (lr: 0.1)"),
        ({"Glyphs": {}}, "Glyphs"),
        ({"Glyphs": None}, "Glyphs"),
        ({"Joint": {"one": {"A": {}}, "two": {"B": {"x": 1}}}}, "Joint (one: A, two: B (x: 1))"),
        (3, "3"),
        (None, "–"),
        (MISSING, "–"),
        ([1, "a"], "[1, a]"),
    ],
)
def test_described(value, text):
    assert described(value) == text


def test_flow_is_yaml():
    for value in ({"a": [1, 2.5, None], "b": {}}, "x: y", 1e-5, True, "null"):
        assert yaml.safe_load(flow(value)) == value
