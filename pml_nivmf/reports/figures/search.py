"""The trials of a search for settings: scores against the number of the trial and every parameter."""

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .style import new_figure, series_style, styled

_COLUMNS = 3
_ROW_HEIGHT = 2.2  # inches
_LABEL_LENGTH = 32  # the end of a long key is what tells it from others
_TRIAL = "trial; lines: best so far"


@styled
def search_figure(losses: Sequence[dict[str, Any]], score: str) -> Figure:
    """One colour for each loss; hollow points are pruned trials.

    losses: of each, `loss`, its name, and `trials` in order, with `score` or None, `state` and `values` by key.
    """
    for loss in (losses := copy.deepcopy(list(losses))):
        for number, trial in enumerate(loss["trials"], 1):
            trial["values"] = {_TRIAL: number} | trial["values"]
    keys = list(dict.fromkeys(key for loss in losses for trial in loss["trials"] for key in trial["values"]))
    rows = math.ceil(len(keys) / _COLUMNS)
    figure = new_figure(_ROW_HEIGHT * rows + 0.5)
    panels = figure.subplots(rows, _COLUMNS, squeeze=False, sharey=True).ravel()
    for key, panel in zip(keys, panels, strict=False):
        _draw(panel, key, losses)
    for panel in panels[len(keys) :]:
        panel.set_axis_off()
    figure.suptitle(f"{score} in percent; hollow: pruned")
    panels[0].set_ylabel("validation score, %")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return figure


def _draw(panel: Axes, key: str, losses: Sequence[dict[str, Any]]) -> None:
    values = [trial["values"][key] for loss in losses for trial in loss["trials"] if key in trial["values"]]
    are_numbers = all(isinstance(value, int | float) for value in values)
    for index, loss in enumerate(losses):
        trials = [trial for trial in loss["trials"] if key in trial["values"] and trial["score"] is not None]
        x = [trial["values"][key] if are_numbers else str(trial["values"][key]) for trial in trials]
        y = np.array([100 * trial["score"] for trial in trials])
        complete = np.array([trial["state"] == "complete" for trial in trials], dtype=bool)
        style = series_style(index, marker=True)
        faces = np.where(complete, style["color"], "none")
        panel.scatter(x, y, s=14, marker=style["marker"], facecolors=faces, edgecolors=style["color"])
        if key == _TRIAL:
            best = np.fmax.accumulate(np.where(complete, y, np.nan))
            panel.step(x, best, where="post", label=loss["loss"], **series_style(index))
    if key != _TRIAL and are_numbers and min(values) > 0 and max(values) >= 8 * min(values):
        panel.set_xscale("log")
    panel.set_xlabel(key if len(key) <= _LABEL_LENGTH else f"…{key[-_LABEL_LENGTH:]}")
