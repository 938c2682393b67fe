"""Tables for the terminal."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from ..reports import tables
from ..reports.tables import Row

_SHOWN_METRICS = 3  # in a terminal of 80 columns; the saved table has all


def show_comparison(name: str, rows: Sequence[Row]) -> None:
    """Test metrics of losses, mean ± deviation and interval."""
    console, metrics = Console(), tables.ordered_metrics(rows)[:_SHOWN_METRICS]
    before, after, how = ("[bold]", "[/bold]", "in bold") if console.is_terminal else ("* ", "", "after *")  # a file
    table = Table(title=f"{name}: test metrics in percent, mean ± deviation\n\\[95% interval of the mean], best {how}")
    table.add_column("loss", overflow="fold")  # a long name is broken, a number never
    for metric in metrics:
        table.add_column(tables.short_name(metric), justify="right", no_wrap=True)
    for row in rows:
        best = [tables.best_loss(rows, metric) == row.loss for metric in metrics]
        cells = [tables.cell(row, metric).replace(" [", "\n\\[") for metric in metrics]
        table.add_row(row.loss, *(f"{before}{c}{after}" if b else c for c, b in zip(cells, best, strict=True)))
    console.print(table)


def show_sweep(title: str, lines: Sequence[dict[str, Any]]) -> None:
    """A line a loss: its name, trials, score and settings, each one cell."""
    table = Table(title=title)
    table.add_column("loss", overflow="fold")
    table.add_column("trials", justify="right")
    table.add_column("score", justify="right", no_wrap=True)
    table.add_column("best settings", overflow="fold")
    for line in lines:
        table.add_row(line["loss"], line["trials"], line["score"], line["settings"])
    Console().print(table)
