"""A figure of a sweep: the best score so far of each loss, and the score against every parameter."""

import math
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

# Okabe and Ito's colours, which colour-blind people can tell apart, and a marker shape for each round through them.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = ("o", "s", "^")
_COLUMNS = 3
_PANEL = (4.6, 3.3)  # inches
_LABEL_CHARACTERS = 40
_SPREAD = 0.5  # of losses within a category, whose width is 1


def plot(found: dict[str, Any], folder: Path) -> None:
    """Draw what sweep.json holds, into sweep.png and sweep.svg. Figures without pyplot need no display."""
    keys = list(dict.fromkeys(key for loss in found["losses"] for key in loss["space"]))
    rows = math.ceil((1 + len(keys)) / _COLUMNS)
    figure = Figure(figsize=(_COLUMNS * _PANEL[0], rows * _PANEL[1] + 0.8), layout="constrained")
    panels = figure.subplots(rows, _COLUMNS, squeeze=False).ravel()
    _draw_progress(panels[0], found)
    for key, panel in zip(keys, panels[1:], strict=False):
        _draw_parameter(panel, key, found)
    for panel in panels[1 + len(keys) :]:
        panel.set_axis_off()
    figure.suptitle(f"{found['experiment']}: {found['score']} in percent; hollow: pruned")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=9)
    for suffix in ("png", "svg"):
        figure.savefig(folder / f"sweep.{suffix}", dpi=150)


def _draw_progress(panel: Axes, found: dict[str, Any]) -> None:
    for i, loss in enumerate(found["losses"]):
        style = _style(i)
        scored = [(1 + t["slot"], 100 * t["score"]) for t in loss["trials"] if t["score"] is not None]
        pruned = [(1 + t["slot"], 100 * t["reached"]) for t in loss["trials"] if t["reached"] is not None]
        _scatter(panel, scored, style, hollow=False)
        _scatter(panel, pruned, style, hollow=True)
        best = [(slot, max(score for s, score in scored if s <= slot)) for slot, _ in scored]
        panel.step(
            *_columns(best), where="post", color=style["color"], marker=style["marker"], ms=3, label=loss["loss"]
        )
    panel.set_xlabel("trial; lines: best so far")
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.set_ylabel("validation score, %")
    panel.grid(alpha=0.3)


def _draw_parameter(panel: Axes, key: str, found: dict[str, Any]) -> None:
    kinds = [loss["space"][key] for loss in found["losses"] if key in loss["space"]]
    options = _options(kinds)
    concerned = [(i, loss) for i, loss in enumerate(found["losses"]) if key in loss["space"]]
    for rank, (i, loss) in enumerate(concerned):
        for field, hollow in (("score", False), ("reached", True)):
            trials = [t for t in loss["trials"] if t[field] is not None]
            places = [_place(t["values"][key], options, rank, len(concerned)) for t in trials]
            _scatter(panel, list(zip(places, (100 * t[field] for t in trials), strict=True)), _style(i), hollow)
    if options:
        panel.set_xticks(range(len(options)), options, rotation=20 if len(options) > 4 else 0)
        panel.set_xlim(-0.5, len(options) - 0.5)
    elif all("int" in kind for kind in kinds):
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    elif all("log_uniform" in kind for kind in kinds):
        panel.set_xscale("log")
    panel.set_xlabel(_label(key))
    panel.grid(alpha=0.3)


def _options(kinds: list[dict[str, Any]]) -> list[str]:
    """Names of the categories; none where some loss searches a range, which is drawn to scale."""
    if not all("choice" in kind for kind in kinds):
        return []
    values = [value for kind in kinds for value in kind["choice"]]
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return list(dict.fromkeys(str(value) for value in (sorted(values) if numbers else values)))


def _place(value: Any, options: list[str], rank: int, count: int) -> float:
    """Where a value is on the x axis; in a category, losses stand side by side."""
    if not options:
        return float(value)
    return options.index(str(value)) + (_SPREAD * (rank / (count - 1) - 0.5) if count > 1 else 0.0)


def _style(i: int) -> dict[str, Any]:
    return {"color": _COLOURS[i % len(_COLOURS)], "marker": _MARKERS[i // len(_COLOURS) % len(_MARKERS)]}


def _scatter(panel: Axes, points: list[tuple[float, float]], style: dict[str, Any], hollow: bool) -> None:
    face = "none" if hollow else style["color"]
    panel.scatter(
        *_columns(points), s=18, alpha=0.7, facecolors=face, edgecolors=style["color"], marker=style["marker"]
    )


def _columns(points: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _label(key: str) -> str:
    """The end of a long key is what tells it from others."""
    return key if len(key) <= _LABEL_CHARACTERS else "…" + key[-_LABEL_CHARACTERS:]
