"""What the proxies say: calibration of their softmax, and their concentrations."""

from collections.abc import Sequence

from ..html import Markup, join, tag
from ..run_folders import Group, Run
from .section import Column, dig, estimate_table, glossary

_ANISOTROPY = (
    "Standard deviation over mean of a class's concentrations over the dimensions, median over classes: 0 is isotropic."
)
_TRAINED_ON = "training images, without augmentation"
_NOTE = (
    "Experiments hold out whole classes, so the only images of the classes that the softmax knows are those it was "
    "trained on: this is a calibration of the fit, not of new images. Runs with evaluation.closed_set_share=0.1 keep "
    "a tenth of every class out of training and measure it there."
)


def proxies(groups: Sequence[Group]) -> Markup:
    columns = [
        _calibration("expected_calibration_error", "ECE", "Expected calibration error of the softmax over proxies."),
        _calibration("accuracy", "accuracy", "How often the likeliest proxy is that of the image's class."),
        _calibration("confidence", "confidence", "The mean probability of the likeliest proxy."),
        _concentrations("concentration", "mean", "mean κ", "Mean concentration over classes and dimensions."),
        _concentrations("anisotropy", "median", "anisotropy", _ANISOTROPY),
        _concentrations("anisotropy", "largest", "largest anisotropy", "That of the most anisotropic class."),
    ]
    reasons = {dig(run.uncertainty, "calibration", "left_out") for group in groups for run in group.runs}
    notes = [tag("p", f"No calibration: {reason}.") for reason in sorted(filter(None, reasons))]
    images = {text for group in groups for run in group.runs if (text := _images(run)) is not None}
    caption = (
        f"The softmax over proxies on {' or on '.join(sorted(images)) or _TRAINED_ON}, ECE, accuracy and confidence in "
        "percent; and the proxies' concentrations"
    )
    table = estimate_table(groups, columns, caption)
    note = tag("p", _NOTE) if _TRAINED_ON in images else None
    return join(tag("h3", "What do the proxies say?"), note, table, glossary(columns), notes)


def _images(run: Run) -> str | None:
    """What the calibration was measured on; None where there is none."""
    found = dig(run.uncertainty, "calibration") or {}
    return None if "left_out" in found else str(found.get("images", _TRAINED_ON))


def _calibration(key: str, title: str, explained: str) -> Column:
    return Column(key, title, lambda run: dig(run.uncertainty, "calibration", key), explained, ranked=False)


def _concentrations(key: str, part: str, title: str, explained: str) -> Column:
    return Column(
        f"{key}_{part}",
        title,
        lambda run: dig(run.uncertainty, "concentrations", key, part),
        explained,
        percent=False,
        ranked=False,
        digits=4 if key == "anisotropy" else 2,
    )
