"""Figures as files, and the command that draws those that need no run."""

import xml.etree.ElementTree as ElementTree

import pytest
from PIL import Image

from pml_nivmf.cli import main
from pml_nivmf.reports import figures

SVG = "{http://www.w3.org/2000/svg}svg"


def draw():
    return figures.ablation_bars({"Cos": [60.0, 61.0], "L2": [55.0, 56.0]}, "R@1")


def test_png_and_svg(tmp_path):
    png, svg = figures.save(draw(), tmp_path / "new" / "bars.v2")
    assert (png.name, svg.name) == ("bars.v2.png", "bars.v2.svg")
    with Image.open(png) as image:
        assert image.size[0] == round(figures.style.PAGE_WIDTH * 200)
        colours = image.convert("RGB").getcolors(maxcolors=10**6)
    assert len(colours) > 20
    assert max(colours)[1] == (255, 255, 255)
    root = ElementTree.parse(svg).getroot()
    assert root.tag == SVG
    assert len(list(root.iter("{http://www.w3.org/2000/svg}path"))) > 20


def test_pixels_an_inch(tmp_path):
    (png,) = figures.save(draw(), tmp_path / "small", ["png"], dpi=50)
    with Image.open(png) as image:
        assert image.size[0] == round(figures.style.PAGE_WIDTH * 50)


def test_a_suffix_is_no_part_of_the_name(tmp_path):
    assert figures.save(draw(), str(tmp_path / "bars.svg"), ["png"]) == [tmp_path / "bars.png"]


def test_the_same_figure_is_the_same_file(tmp_path):
    first = [path.read_bytes() for path in figures.save(draw(), tmp_path / "a")]
    second = [path.read_bytes() for path in figures.save(draw(), tmp_path / "b")]
    assert first == second


@pytest.mark.parametrize(
    ("formats", "message"),
    [
        (["gif"], "format must be one of png, svg, got 'gif'"),
        ([], r"formats must be a list of png and svg, got \[\]"),
        ("png", "formats must be a list of png and svg, got 'png'"),
    ],
)
def test_formats_that_do_not_exist(tmp_path, formats, message):
    with pytest.raises(ValueError, match=message):
        figures.save(draw(), tmp_path / "bars", formats)


def test_the_command(tmp_path, capsys):
    assert main(["figures", "--dir", str(tmp_path / "out"), "--format", "png"]) == 0
    printed = capsys.readouterr().out.split()
    names = {"densities_on_sphere", "vmf_beside_nivmf", "distance_surfaces", "normalizer_approximations"}
    assert set(printed) == {str(tmp_path / "out" / f"{name}.png") for name in names}
    for path in (tmp_path / "out").iterdir():
        assert 20_000 < path.stat().st_size < 2_000_000
    assert main(["figures", "--format", "bmp", "--dir", str(tmp_path / "none")]) == 2
    assert "format must be one of png, svg, got 'bmp'" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
