"""Every figure is drawn, says what its axes are, and shows the numbers it was given."""

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text

from pml_nivmf.metrics import risk_coverage
from pml_nivmf.reports import figures
from pml_nivmf.reports.figures import style

CHANCE = np.random.default_rng(0)
CERTAINTY = CHANCE.normal(10, 2, 400)
CORRECT = CHANCE.random(400) < 1 / (1 + np.exp(10 - CERTAINTY))
IMAGES = CHANCE.random((40, 1, 12, 16))


def histories():
    """Two runs of three seeds; validation every second epoch; seed 2 stops early."""
    return {
        name: [
            [
                {"epoch": e, "train_loss": 5 / e + seed}
                | ({"validation_recall_at_1": height - (e - 6) ** 2 / 100} if e % 2 == 0 else {})
                for e in range(1, 11 if seed < 2 else 8)
            ]
            for seed in range(3)
        ]
        for name, height in (("ProxyNCA", 0.6), ("EL-nivMF", 0.7))
    }


DRAWN = {
    **figures.NEEDING_NO_RUN,
    "ablation_bars": lambda: figures.ablation_bars({"Cos": [60, 61.0], "EL-nivMF": [63.0, 64, 65]}, "R@1"),
    "metric_against_weight": lambda: figures.metric_against_weight(
        [10, 0.1, 1], [[3.0, 4.0], [1.0, 2.0], [5.0, 6.0]], "R@1", baselines={"EL-nivMF alone": [2.0, 2.5]}
    ),
    "norm_histograms": lambda: figures.norm_histograms({"a": (CERTAINTY, CORRECT), "b": (-CERTAINTY, CORRECT)}),
    "risk_coverage_curves": lambda: figures.risk_coverage_curves(
        {"norm": [(CERTAINTY, CORRECT), (CERTAINTY[::2], CORRECT[::2])], "chance": [(CHANCE.random(400), CORRECT)]}
    ),
    "training_curves": lambda: figures.training_curves(
        histories(), {"train_loss": "training loss", "validation_recall_at_1": "validation R@1"}
    ),
    "degradation_curves": lambda: figures.degradation_curves(
        {"a": [{"crop": [0.5, 0.9], "blur": [0.1, 0.2]}, {"crop": [0.7, 1.0], "blur": [0.1, 0.4]}]},
        {"crop": [0.2, 0.4], "blur": [0.3, 0.6]},
    ),
    "norm_grid": lambda: figures.norm_grid(IMAGES, CERTAINTY[:40], rows=3, columns=8),
    "class_norm_grid": lambda: figures.class_norm_grid(
        IMAGES, CERTAINTY[:40], np.arange(40) % 4, [2, 0], names=["gamma", "alpha"], columns=6
    ),
    "retrieval_sheet": lambda: figures.retrieval_sheet(
        IMAGES[:2], IMAGES[2:12].reshape(2, 5, 1, 12, 16), np.eye(2, 5), CERTAINTY[:2], np.full((2, 5), 0.5)
    ),
}
WITHOUT_AXES = ("densities_on_sphere", "vmf_beside_nivmf", "norm_grid", "class_norm_grid", "retrieval_sheet")


@pytest.fixture(scope="module")
def drawn():
    return {name: draw() for name, draw in DRAWN.items()}


def shown(figure):
    """Panels, without colour bars and places left empty."""
    return [axes for axes in figure.axes if axes.get_label() != "<colorbar>" and (axes.axison or axes.images)]


# all figures ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DRAWN)
def test_fits_a_page_and_is_legible(drawn, name):
    figure = drawn[name]
    assert isinstance(figure, Figure)
    width, height = figure.get_size_inches()
    assert width <= style.PAGE_WIDTH
    assert 1 < height < 9.7  # A4 with margins
    texts = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip()]
    assert min(text.get_fontsize() for text in texts) >= 6.5  # points, at page width


@pytest.mark.parametrize("name", [name for name in DRAWN if name not in WITHOUT_AXES])
def test_axes_are_labelled(drawn, name):
    panels = shown(drawn[name])
    assert panels
    assert panels[0].get_ylabel() or name == "ablation_bars"  # its axis names the methods
    rows = {axes.get_subplotspec().rowspan.start for axes in panels}
    for axes in panels:
        if axes.get_subplotspec().rowspan.start == max(rows):
            assert axes.get_xlabel()


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("distance_surfaces", "(degrees)"),
        ("normalizer_approximations", "(nats)"),
        ("ablation_bars", "(%)"),
        ("metric_against_weight", "(%)"),
        ("risk_coverage_curves", "(%)"),
        ("degradation_curves", "(%)"),
    ],
)
def test_units(drawn, name, unit):
    labels = [label for axes in shown(drawn[name]) for label in (axes.get_xlabel(), axes.get_ylabel())]
    assert any(unit in label for label in labels)


@pytest.mark.parametrize("name", DRAWN)
def test_nothing_lies_outside_the_page(drawn, name):
    """What a reader would not see: titles, labels and legends beyond the figure's edge."""
    figure = drawn[name]
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    box = figure.get_tightbbox(canvas.get_renderer())
    width, height = figure.get_size_inches()
    assert box.x0 >= -0.02
    assert box.y0 >= -0.02
    assert box.x1 <= width + 0.02
    assert box.y1 <= height + 0.02


def test_settings_of_the_user_stay(drawn):
    with matplotlib.rc_context({"font.size": 23, "axes.grid": False}):
        before = dict(matplotlib.rcParams)
        figure = DRAWN["ablation_bars"]()
        assert dict(matplotlib.rcParams) == before
    assert figure.axes[0].xaxis.label.get_fontsize() == style.STYLE["axes.labelsize"]


def test_no_window_is_opened():
    from matplotlib import pyplot

    DRAWN["metric_against_weight"]()
    assert pyplot.get_fignums() == []


# colours --------------------------------------------------------------------------------------------------------

# Linear-RGB matrices of full protanopia and deuteranopia [Machado, Oliveira & Fernandes 2009].
BLINDNESS = {
    "none": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}


def lab(colour, blindness):
    """CIELAB (D65) of an sRGB colour as someone with this blindness sees it."""
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(BLINDNESS[blindness] @ linear, 0, 1)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ seen
    f = np.cbrt(xyz / [0.95047, 1.0, 1.08883])
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("blindness", BLINDNESS)
def test_colours_can_be_told_apart(blindness):
    seen = [lab(colour, blindness) for colour in style.COLOURS]
    gaps = [np.linalg.norm(a - b) for i, a in enumerate(seen) for b in seen[:i]]
    assert min(gaps) > 12  # 2.3 is just noticeable
    assert np.linalg.norm(lab(style.RIGHT, blindness) - lab(style.WRONG, blindness)) > 40


# one by one -----------------------------------------------------------------------------------------------------


def test_spheres(drawn):
    panels = shown(drawn["densities_on_sphere"])
    assert len(panels) == 9
    spread = []
    for axes in panels:
        (image,) = axes.images
        density = np.asarray(image.get_array())
        assert density.max() == pytest.approx(1.0, abs=0.01)
        spread.append(density.mean())
    assert spread[0] > spread[1] > spread[2]  # κ = 5, 20, 80
    titles = [axes.get_title() for axes in panels]
    assert [title.endswith("total mass 1") for title in titles] == [False] * 3 + [True] * 3 + [False] * 3


def test_a_sphere_shows_the_density_it_was_given():
    """A density that grows with x_3 only: the same at both ends of a parallel, highest at the pole."""
    panel = figures.Panel("up", lambda points: 3 * points[:, 2], (0, 0, 1))
    (axes,) = shown(figures.densities_on_sphere({"test": [panel]}))
    density = np.asarray(axes.images[0].get_array())
    row, column = np.unravel_index(density.argmax(), density.shape)
    left, right, bottom, top = axes.images[0].get_extent()
    pole = next(line for line in axes.lines if line.get_marker() == "o").get_xydata()[0]
    side = density.shape[0] - 1
    assert left + column / side * (right - left) == pytest.approx(pole[0], abs=0.02)
    assert bottom + row / side * (top - bottom) == pytest.approx(pole[1], abs=0.02)


def test_surfaces(drawn):
    panels = shown(drawn["distance_surfaces"])
    assert len(panels) == 3
    cosine, squared, bhattacharyya = (
        next(c for c in axes.collections if isinstance(c, QuadMesh)).get_array().reshape(97, 91) for axes in panels
    )
    assert (np.ptp(cosine, axis=0) == 0).all()  # the norm has no say
    assert (np.diff(cosine, axis=1) > 0).all()
    assert squared[:, 0].argmin() == 48  # at angle 0 the nearest norm is the proxy's, 512
    assert squared.min() == 0
    assert np.ptp(bhattacharyya[0]) == pytest.approx(0, abs=1e-9)  # no norm, no direction
    assert (np.diff(bhattacharyya[1:], axis=1) > 0).all()
    assert bhattacharyya.min() == pytest.approx(0, abs=1e-9)


def test_normalizers(drawn):
    top, _, bottom, _ = shown(drawn["normalizer_approximations"])
    assert [line.get_label() for line in top.lines][:2] == ["exact", "the paper's fit"]
    assert len(top.lines) == 4
    assert len(bottom.lines) == 3
    assert (np.diff(top.lines[0].get_ydata()) < 0).all()
    assert bottom.get_yscale() == "log"
    fit, upper, lower = (np.nanmax(line.get_ydata()) for line in bottom.lines)
    assert fit > 100 > 1 > max(upper, lower)


def test_bars():
    scores = {"Cos": [60.0, 62.0], "EL-nivMF": [63.0, 64.0, 65.0], "single": [61.0]}
    (axes,) = figures.ablation_bars(scores, "R@1").axes
    assert [bar.get_x() + bar.get_width() for bar in axes.patches] == pytest.approx([61, 64, 61])
    assert [label.get_text() for label in axes.get_yticklabels()] == list(scores)
    (errors,) = axes.containers[1].lines[2]
    halves = [np.ptp(segment[:, 0]) / 2 for segment in errors.get_segments()]
    assert halves == pytest.approx([np.sqrt(2), 1.0]), "a single seed has no spread"
    assert sum("±" in text.get_text() for text in axes.texts) == 2
    start = axes.patches[0].get_x()
    assert 50 < start < 60
    assert f"the axis starts at {start:g}" in axes.get_xlabel()
    (axes,) = figures.ablation_bars(scores, "R@1", from_zero=True).axes
    assert axes.get_xlim()[0] == 0
    assert axes.get_xlabel() == "R@1 (%)"


def test_bars_of_nothing():
    with pytest.raises(ValueError, match=r"scores of 'b' must be one finite number a seed, got \[nan\]"):
        figures.ablation_bars({"a": [1.0], "b": [float("nan")]}, "R@1")


def test_weights_are_sorted_with_their_scores(drawn):
    (axes,) = drawn["metric_against_weight"].axes
    line = axes.lines[0]
    assert line.get_xdata().tolist() == [0.1, 1, 10]
    assert line.get_ydata().tolist() == [1.5, 5.5, 3.5]
    assert axes.get_xscale() == "log"
    band = axes.collections[0].get_paths()[0].vertices
    at_one = band[np.isclose(band[:, 0], 1), 1]
    assert (at_one.min(), at_one.max()) == pytest.approx((5.5 - 0.5**0.5, 5.5 + 0.5**0.5))
    assert "EL-nivMF alone" in [text.get_text() for text in axes.get_legend().get_texts()]
    with pytest.raises(ValueError, match=r"weights must be positive, with one row of scores each, got \[0, 1\]"):
        figures.metric_against_weight([0, 1], [[1.0], [1.0]], "R@1")


def test_histograms():
    figure = figures.norm_histograms({"run": (CERTAINTY, CORRECT), "all right": (CERTAINTY, np.ones(400))}, bins=10)
    first, second = shown(figure)
    areas = []
    for patch in first.patches:  # filled and outlined, right and wrong
        x, y = patch.get_xy().T
        areas.append(abs(np.sum((x[1:] - x[:-1]) * (y[1:] + y[:-1]) / 2)))
    assert areas[0] == pytest.approx(1.0)
    assert len(areas) == 4
    medians = sorted(float(line.get_xdata()[0]) for line in first.lines)
    assert medians == pytest.approx(sorted([np.median(CERTAINTY[CORRECT]), np.median(CERTAINTY[~CORRECT])]))
    assert "AUROC 0." in first.get_title()
    assert "100.0% right, AUROC undefined" in second.get_title()
    (legend,) = figure.legends
    assert len(legend.get_texts()) == 2
    constant = figures.norm_histograms({"unit norms": (np.ones(50), CORRECT[:50])})
    assert "AUROC 0.500" in constant.axes[0].get_title()


def test_risk_coverage(drawn):
    (axes,) = drawn["risk_coverage_curves"].axes
    norm, chance = axes.lines
    curve = risk_coverage(CERTAINTY, CORRECT)
    assert chance.get_ydata()[-1] == pytest.approx(100 * float(curve.risk[-1]))
    assert norm.get_ydata()[40] < norm.get_ydata()[-1] - 10
    assert norm.get_xdata()[-1] == 100
    assert len(axes.collections) == 1  # a band for the run with two seeds
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels[0].startswith("norm (AURC ")


def test_training(drawn):
    loss, recall = shown(drawn["training_curves"])
    line = loss.lines[0]
    assert line.get_xdata().tolist() == list(range(1, 11))
    expected = [5 / e + (1.0 if e < 8 else 0.5) for e in range(1, 11)]  # the third seed has gone
    assert line.get_ydata().tolist() == pytest.approx(expected)
    first, mark, *_ = recall.lines
    assert first.get_xdata().tolist() == [2, 4, 6, 8, 10]
    assert mark.get_xdata()[0] == 6
    assert mark.get_ydata()[0] == pytest.approx(0.6)
    assert len(drawn["training_curves"].legends[0].get_texts()) == 2
    with pytest.raises(ValueError, match=r"no history of 'ProxyNCA' has the metric 'validation_recall_at_2'"):
        figures.training_curves(histories(), {"validation_recall_at_2": "R@2"})


def test_degradation(drawn):
    crop, blur = shown(drawn["degradation_curves"])
    assert (crop.get_title(), blur.get_title()) == ("crop", "blur")
    line = next(line for line in crop.lines if line.get_label() == "a")
    assert np.allclose(line.get_xydata(), [[20, 60], [40, 95]]), "mean over seeds, in percent"


def test_grid_is_ordered(drawn):
    panels = shown(drawn["norm_grid"])
    assert len(panels) == 24
    numbers = [float(axes.get_title()) for axes in panels]
    assert numbers == sorted(numbers)
    lowest, highest = CERTAINTY[:40].argmin(), CERTAINTY[:40].argmax()
    np.testing.assert_allclose(panels[0].images[0].get_array(), IMAGES[lowest, 0])
    np.testing.assert_allclose(panels[-1].images[0].get_array(), IMAGES[highest, 0])


def test_grid_of_few_images():
    figure = figures.norm_grid(IMAGES[:5], CERTAINTY[:5], rows=3, columns=4)
    assert len(shown(figure)) == 5
    with pytest.raises(ValueError, match="images and certainty must be of the same items, got 5 and 4"):
        figures.norm_grid(IMAGES[:5], CERTAINTY[:4])


def test_class_grid(drawn):
    panels = np.reshape(np.array(shown(drawn["class_norm_grid"]), dtype=object), (2, 6))
    assert [row[0].get_ylabel() for row in panels] == ["gamma", "alpha"]
    for row, label in zip(panels, (2, 0), strict=True):
        numbers = [float(axes.get_title()) for axes in row]
        assert numbers == sorted(numbers)
        members = np.arange(40) % 4 == label
        assert numbers[0] == pytest.approx(CERTAINTY[:40][members].min(), rel=5e-3)
        assert numbers[-1] == pytest.approx(CERTAINTY[:40][members].max(), rel=5e-3)
    with pytest.raises(ValueError, match="no image has the label 9"):
        figures.class_norm_grid(IMAGES, CERTAINTY[:40], np.zeros(40), [9])


def test_retrieval(drawn):
    panels = shown(drawn["retrieval_sheet"])
    assert len(panels) == 2 * 6
    assert panels[0].get_title().startswith("‖z‖ = ")
    marks = [axes.get_title() for axes in panels if not axes.get_title().startswith("‖")]
    assert marks == ["0.50  ✓", *["0.50  ✗"] * 4, "0.50  ✗", "0.50  ✓", *["0.50  ✗"] * 3]
    right, wrong = panels[1].spines["left"], panels[2].spines["left"]
    assert to_rgb(right.get_edgecolor()) == to_rgb(style.RIGHT)
    assert to_rgb(wrong.get_edgecolor()) == to_rgb(style.WRONG)
    assert right.get_linestyle() != wrong.get_linestyle()
    with pytest.raises(ValueError, match="must be of the same queries, got 3"):
        figures.retrieval_sheet(IMAGES[:3], IMAGES[2:12].reshape(2, 5, 1, 12, 16), np.eye(2, 5), CERTAINTY[:2])


@pytest.mark.parametrize("shape", [(4, 12, 16), (4, 1, 12, 16), (4, 3, 12, 16)])
def test_kinds_of_images(shape):
    floats = CHANCE.random(shape)
    as_bytes = figures.norm_grid((floats * 255).round().astype(np.uint8), np.arange(4.0), rows=1, columns=4)
    as_floats = figures.norm_grid(floats, np.arange(4.0), rows=1, columns=4)
    for first, second in zip(shown(as_bytes), shown(as_floats), strict=True):
        a, b = np.asarray(first.images[0].get_array()), np.asarray(second.images[0].get_array())
        assert a.shape == ((12, 16, 3) if 3 in shape else (12, 16))
        np.testing.assert_allclose(a, b, atol=0.003)


def test_images_that_do_not_fit():
    with pytest.raises(ValueError, match="undo the normalisation"):
        figures.norm_grid(CHANCE.normal(size=(4, 3, 8, 8)), np.arange(4.0))
    with pytest.raises(ValueError, match=r"got \(4, 2, 8, 8\)"):
        figures.norm_grid(np.zeros((4, 2, 8, 8)), np.arange(4.0))
