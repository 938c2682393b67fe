"""The report as a document: complete, self-contained, and safe whatever runs are called."""

import base64
import io
import re
from collections import Counter

import numpy as np
import pytest
import yaml
from PIL import Image

from pml_nivmf import cli
from pml_nivmf.reports.tables import Estimate
from pml_nivmf.reports.view import image_uri

from .conftest import EVIL, report
from .fake_runs import comparison, write_run


def test_nothing_is_loaded(compared):
    for element in compared.elements:
        for key, value in element.attrib.items():
            if key.rpartition("}")[2] in ("src", "href", "srcset", "data", "action"):
                assert value.startswith(("#", "data:image/")), (element, key)
    assert not re.search(r"@import|url\((?!#)", compared.text)
    assert len(compared.text) < 5e6
    assert any("default-src 'none'" in attributes.get("content", "") for attributes in compared.attributes("meta"))


def test_links_and_references_have_a_target(compared):
    ids = [element.attrib["id"] for element in compared.elements if "id" in element.attrib]
    assert len(ids) == len(set(ids)), "ids of figures are unique, too"
    used = re.findall(r'(?:href="#|url\(#)([^")]+)', compared.text)
    assert len(used) > 100, "figures refer to glyphs and clip paths"
    assert set(used) <= set(ids)
    sections = [a["aria-labelledby"] for a in compared.attributes("section")]
    assert [a["href"][1:] for a in compared.attributes("a")] == ["results", *sections]
    names = "overview results training uncertainty images configuration environment reproduce"
    assert sections == names.split()


def test_figures_and_images_have_a_description(compared):
    assert all(attributes["alt"] for attributes in compared.attributes("img"))
    labels = [a["aria-label"] for a in compared.attributes("div") if a.get("role") == "img"]
    assert len(labels) == compared.text.count("<svg") == 6
    assert all(len(label) > 40 for label in labels)
    assert any("proxy_nca 70.5" in label for label in labels), "the numbers of the bars"


def test_results_are_estimates_over_seeds(compared):
    assert "Test metrics in percent, mean ± deviation [95% interval]; the best in bold" in compared.texts("caption")
    assert f"{EVIL}, el_nivmf, proxy_nca; 1 to 2 seeds each" in compared.texts("dd")
    estimate = str(Estimate.of([0.7, 0.71]))
    mean, interval = estimate.split(" [")
    assert f"{mean}[{interval}" in compared.texts("td")
    assert repr(float(np.mean([0.7, 0.71]))) in [a.get("data-value") for a in compared.attributes("td")]
    assert mean in compared.texts("strong"), "the highest R@1"
    assert f"proxy_nca {estimate}" in compared.texts("strong"), "and in the sentence at the top"
    assert "Overlapping intervals, so the order is uncertain: el_nivmf." in " ".join(compared.texts("p"))


def test_strings_of_runs_are_escaped(compared):
    assert compared.text.count("<script>") == 1
    assert not compared.attributes("b")
    assert not [key for element in compared.elements for key in element.attrib if key.startswith("on")]
    assert EVIL in compared.texts("th")
    assert "</pre><script>a</script> (x: <b>&amp;</b>)" in compared.texts("code")
    assert "run </code><script>b</script>" in compared.texts("pre")[-3]


def test_undefined_values_and_reasons(compared):
    captions = " ".join(compared.texts("caption"))
    assert "40 test items, clean and degraded (crop, occlude, blur, noise)" in captions
    spans = [int(a["colspan"]) for a in compared.attributes("th") if "colspan" in a]
    assert spans == [3, 3, 3, 2, 3]
    assert "10.0 ± 0.0[10.0, 10.0]" in compared.texts("td"), "R@1 of degraded images, mean over kinds and strengths"


def test_settings_and_environments(compared):
    assert {"NonIsotropicVMFLoss (estimator: analytic)", "ProxyNCALoss"} <= set(compared.texts("code"))
    assert compared.texts("mark") == ["3.12, 3.11"]
    (config,) = compared.path.parents[1].glob("a<*/seed-0/config.yaml")
    text = next("".join(element.itertext()) for element in compared.elements if element.tag == "pre")
    assert yaml.safe_load(text) == yaml.safe_load(config.read_text())


def decode(uri):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))


def test_images_show_the_items_they_name(compared):
    images = [a for a in compared.attributes("img") if re.search(r"test image \d", a["alt"])]
    assert len(images) > 40
    for attributes in images:
        assert (decode(attributes["src"]) == int(re.search(r"test image (\d+)", attributes["alt"])[1])).all()
    degraded = [a["alt"] for a in compared.attributes("img") if "%" in a["alt"]]
    assert len(degraded) == 16
    assert degraded[1] == "a test image, crop at 25%"
    # two losses with the queries 0 (class 0) and 9 (class 1), whose five neighbours are all of their class
    assert Counter(a["class"] for a in images if "class" in a) == {"query": 4, "right": 20}
    assert "0.90 ✓" in compared.texts("figcaption")


@pytest.mark.parametrize(("channels", "kind", "tolerance"), [(1, "png", 0), (3, "jpeg", 5)])
def test_photographs_are_jpeg_and_grey_images_are_exact(channels, kind, tolerance):
    pixels = np.full((channels, 9, 7), np.array([200, 100, 50], dtype=np.uint8)[:channels, None, None])
    assert image_uri(pixels).startswith(f"data:image/{kind};base64,")
    decoded = decode(image_uri(pixels)).reshape(9, 7, channels).astype(int)
    assert np.abs(decoded - pixels.transpose(1, 2, 0)).max() <= tolerance


def test_one_run(tmp_path, undrawn):
    page = report(write_run(tmp_path / "glyphs" / "el_vmf" / "seed-3", {"VMFProxyLoss": {}}, seed=3))
    assert page.texts("h1") == ["glyphs el_vmf"]
    assert "el_vmf; 1 seed" in page.texts("dd")
    assert "Test metrics in percent" in page.texts("caption")
    assert "50.00" in page.texts("td")
    assert not page.texts("small"), "one seed has no interval"


def test_runs_without_artifacts(tmp_path, undrawn):
    page = report(comparison(tmp_path / "old", artifacts=False))
    titles = "Contents Overview Results Training Configuration Environment Reproduce"
    assert page.texts("h2") == titles.split()


def test_features(tmp_path, undrawn):
    """Degraded features have one strength, which needs no curve."""
    page = report(comparison(tmp_path / "cars", images=False))
    assert "Images" not in page.texts("h2")
    assert page.text.count("<svg") == 5
    assert "clean and degraded (as given); R@1" in " ".join(page.texts("caption"))


def test_different_data_sets(tmp_path, undrawn):
    """Images and features in one report, with a warning."""
    comparison(tmp_path / "both" / "glyphs", seeds=1)
    comparison(tmp_path / "both" / "cars", seeds=1, images=False, dataset={"FeatureArrays": {"npz": "x"}})
    page = report(tmp_path / "both")
    assert any("cannot be compared directly" in text for text in page.texts("p"))
    assert {"glyphs/el_nivmf", "cars/el_nivmf"} <= set(page.texts("th"))
    assert page.texts("h3")[-2:] == ["glyphs/el_nivmf, seed 0", "glyphs/proxy_nca, seed 0"], "features have no images"


def test_what_cannot_be_reported(tmp_path, capsys):
    assert cli.main(["report", str(tmp_path / "nowhere")]) == 2
    assert "nowhere is not a run folder and contains none (config.yaml is missing)" in capsys.readouterr().err
    folder = write_run(tmp_path / "run", {"L": {}})
    np.savez(folder / "test_items.npz", labels=np.array([print], dtype=object))
    assert cli.main(["report", str(folder)]) == 2
    assert "test_items.npz cannot be read: Object arrays cannot be loaded" in capsys.readouterr().err
    (folder / "summary.json").unlink()
    assert cli.main(["report", str(folder)]) == 2
    assert f"no finished run with test results in {folder}: 1 unfinished" in capsys.readouterr().err


def test_the_command(tmp_path, undrawn, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    comparison(tmp_path / "glyphs", seeds=1, artifacts=False)
    for arguments, path in (
        (["glyphs"], "glyphs/report.html"),
        (["glyphs/el_nivmf", "glyphs/proxy_nca"], "report.html"),
        (["glyphs", "--out", "deep/page.html"], "deep/page.html"),
    ):
        assert cli.main(["report", *arguments]) == 0
        assert capsys.readouterr().out.strip() == path
        assert (tmp_path / path).read_text().startswith("<!DOCTYPE html>")
