"""Every figure is drawn, labels its axes, and shows its numbers; the files are complete and the same every time."""

import math
import warnings
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import QuadMesh
from matplotlib.text import Text
from PIL import Image

from pml_nivmf.cli import main
from pml_nivmf.distributions import VonMisesFisher
from pml_nivmf.metrics import risk_coverage
from pml_nivmf.reports import figures
from pml_nivmf.reports.figures import runs, style

GENERATOR = np.random.default_rng(0)
CERTAINTY = GENERATOR.normal(10, 2, 400)
CORRECT = GENERATOR.random(400) < 1 / (1 + np.exp(10 - CERTAINTY))
SCORES = {"Cos": [60.0, 62.0], "EL-nivMF": [63.0, 64.0, 65.0], "single": [61.0]}
HISTORIES = {  # the second seed stops early; validation in every second epoch
    "a": [[{"epoch": e, "train_loss": 5 / e + seed} for e in range(1, 7 - 2 * seed)] for seed in (0, 1)],
    "b": [[{"epoch": e, "recall": None if e % 2 else min(e, 4) / 10} for e in range(1, 7)]],
}


def kinds(**shares):
    return {name: {"strength": [0.2, 0.4], "norm": {"share_less_certain": values}} for name, values in shares.items()}


DRAWN = {
    **figures.NEEDING_NO_RUN,
    "ablation_bars": lambda: runs.ablation_bars(SCORES, "R@1"),
    "norm_histograms": lambda: runs.norm_histograms({"a": (CERTAINTY, CORRECT), "b": (CERTAINTY, CORRECT | True)}),
    "risk_coverage_curves": lambda: runs.risk_coverage_curves(
        {"norm": [(CERTAINTY, CORRECT), (CERTAINTY[::2], CORRECT[::2])], "random": [(GENERATOR.random(400), CORRECT)]}
    ),
    "training_curves": lambda: runs.training_curves(HISTORIES, {"train_loss": "loss", "recall": "validation R@1"}),
    "weight_curves": lambda: runs.weight_curves(
        {
            "CUB": {0: [50, 52], 0.1: [54, 55], math.inf: [51, 51]},
            "Cars196": {0: [70], 3: [72, 73], math.inf: [74, 75]},
        },
        "R@1",
    ),
    "degradation_curves": lambda: runs.degradation_curves(
        {"two seeds": [kinds(crop=[0.5, 0.9]), kinds(crop=[0.7, 1.0])], "other": [kinds(blur=[0.1, 0.4])]}
    ),
}


@pytest.fixture(scope="module")
def drawn():
    return {name: draw() for name, draw in DRAWN.items()}


def panels(figure):
    return [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]


@pytest.mark.parametrize("name", DRAWN)
def test_fits_a_page_and_is_legible(drawn, name):
    figure = drawn[name]
    width, height = figure.get_size_inches()
    assert width <= style.PAGE_WIDTH
    assert 1 < height < 9.7  # A4 with margins
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    assert min(text.get_fontsize() for text in texts) >= 6.5  # points, at page width
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    box = figure.get_tightbbox(canvas.get_renderer())
    assert min(box.x0, box.y0, width - box.x1, height - box.y1) >= -0.02, "nothing is cut off"
    if name not in ("densities_on_sphere", "vmf_beside_nivmf"):
        assert panels(figure)[0].get_ylabel() or name == "ablation_bars", "its axis names the methods"
        assert panels(figure)[-1].get_xlabel()


def test_the_settings_of_the_user_stay():
    with matplotlib.rc_context({"font.size": 23, "axes.grid": False}):
        before = dict(matplotlib.rcParams)
        figure = DRAWN["ablation_bars"]()
        assert dict(matplotlib.rcParams) == before
    assert figure.axes[0].xaxis.label.get_fontsize() == style.STYLE["axes.labelsize"]


def test_a_sphere_shows_its_density():
    """The density of a vMF is highest at its mean direction, where the dot is."""
    distribution = VonMisesFisher(torch.tensor([0.48, 0.36, 0.8]).double(), 3.0, validate_args=False)
    (axes,) = panels(figures.densities_on_sphere({"test": {"vMF": distribution}}))
    density = np.asarray(axes.images[0].get_array())
    row, column = np.unravel_index(density.argmax(), density.shape)
    dot = next(line for line in axes.lines if line.get_marker() == "o").get_xydata()[0]
    side = density.shape[0] - 1
    assert (2 * column / side - 1, 2 * row / side - 1) == pytest.approx(tuple(dot), abs=0.02)


def test_distance_surfaces(drawn):
    cosine, squared, bhattacharyya = (
        next(c for c in axes.collections if isinstance(c, QuadMesh)).get_array().reshape(97, 91)
        for axes in panels(drawn["distance_surfaces"])
    )
    assert (np.ptp(cosine, axis=0) == 0).all(), "the norm does not matter"
    assert (np.diff(cosine, axis=1) > 0).all()
    assert squared[:, 0].argmin() == 48, "at angle 0 the nearest norm is that of the proxy, 512"
    assert np.ptp(bhattacharyya[0]) == pytest.approx(0, abs=1e-9), "without a norm there is no direction"
    assert (np.diff(bhattacharyya[1:], axis=1) > 0).all()


def test_bars(drawn):
    (axes,) = drawn["ablation_bars"].axes
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([61, 64, 61])
    assert [label.get_text() for label in axes.get_yticklabels()] == list(SCORES)
    assert [text.get_text() for text in axes.texts] == ["61.0 ± 1.4", "64.0 ± 1.0", "61.0"], "one seed has no spread"
    assert axes.get_xlim()[0] == 0
    (perfect,) = runs.ablation_bars({"a": [90.0, 99.0, 100.0]}, "R@1").axes
    whisker = perfect.containers[0].lines[2][0].get_segments()[0]
    assert whisker[:, 0] == pytest.approx([289 / 3 - np.std([90, 99, 100], ddof=1), 100])


def test_histograms(drawn):
    first, second = panels(drawn["norm_histograms"])
    x, y = first.patches[0].get_xy().T
    assert abs(np.sum(np.diff(x) * (y[1:] + y[:-1]) / 2)) == pytest.approx(1.0), "densities"
    medians = [float(line.get_xdata()[0]) for line in first.lines]
    assert medians == pytest.approx([np.median(CERTAINTY[CORRECT]), np.median(CERTAINTY[~CORRECT])])
    assert "100.0% right" in second.get_title()
    runs.norm_histograms({"unit norms": (np.ones(50), CORRECT[:50])})


def test_the_only_wrong_item_is_drawn_though_its_norm_is_the_largest():
    certainty = np.append(np.linspace(1, 2, 50), 9.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy's, where nothing lies between the edges
        (axes,) = panels(runs.norm_histograms({"a": (certainty, certainty < 9)}))
    assert len(axes.patches) == 2
    assert axes.patches[1].get_xy()[:, 1].max() > 0, "a bar with a height"


def test_weights_run_from_0_to_infinity(drawn):
    (axes,) = drawn["weight_curves"].axes
    assert [label.get_text().split("\n")[0] for label in axes.get_xticklabels()] == ["0", "0.1", "3", "∞"]
    first, second = axes.lines
    assert (list(first.get_xdata()), list(first.get_ydata())) == ([0, 1, 3], [51, 54.5, 51])
    assert (list(second.get_xdata()), list(second.get_ydata())) == ([0, 2, 3], [70, 72.5, 74.5])


def test_risk_coverage(drawn):
    (axes,) = drawn["risk_coverage_curves"].axes
    by_norm, by_chance = axes.lines
    assert by_chance.get_ydata()[-1] == pytest.approx(100 * float(risk_coverage(CERTAINTY, CORRECT).risk[-1]))
    assert by_norm.get_ydata()[40] < by_norm.get_ydata()[-1] - 10
    assert len(axes.collections) == 1, "a band for the method with two seeds"
    assert axes.get_legend().get_texts()[0].get_text().startswith("norm (AURC ")


def test_training(drawn):
    loss, recall = panels(drawn["training_curves"])
    expected = [5 / e + (0.5 if e < 5 else 0.0) for e in range(1, 7)]  # without the second seed after epoch 4
    assert np.allclose(loss.lines[0].get_xydata(), list(zip(range(1, 7), expected, strict=True)))
    assert [list(line.get_xdata()) for line in recall.lines] == [[], [2, 4, 6], [6]], "the last of equal ones is tested"
    assert len(drawn["training_curves"].legends[0].get_texts()) == 2


def test_degradation(drawn):
    crop, _ = panels(drawn["degradation_curves"])
    assert np.allclose(crop.lines[1].get_xydata(), [[20, 60], [40, 95]]), "mean over seeds, in percent"


def test_png_and_svg(tmp_path):
    png, svg = figures.save(DRAWN["ablation_bars"](), tmp_path / "new" / "bars.v2")
    assert (png.name, svg.name) == ("bars.v2.png", "bars.v2.svg")
    with Image.open(png) as image:
        assert image.size[0] == round(style.PAGE_WIDTH * 200)
    assert len(list(ElementTree.parse(svg).getroot().iter("{http://www.w3.org/2000/svg}path"))) > 20
    again = figures.save(DRAWN["ablation_bars"](), tmp_path / "again")
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in (png, svg)]


def test_the_command(tmp_path, capsys, monkeypatch):
    """The commands of experiment_configs/README.md draw all of them in tests/test_readme.py."""
    monkeypatch.setattr(figures, "NEEDING_NO_RUN", {"bars": DRAWN["ablation_bars"]})
    assert main(["figures", "--dir", str(tmp_path / "out")]) == 0
    *files, caption = capsys.readouterr().out.splitlines()
    assert files == sorted(str(path) for path in (tmp_path / "out").iterdir())
    assert caption.strip() == "bars"
