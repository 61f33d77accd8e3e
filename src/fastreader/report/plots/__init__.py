"""The report's figures: `collect` makes a table from a run, and `draw` makes a figure from the table.

A table is a list of rows with the same keys, and becomes a CSV file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastreader.report.study_data import StudyRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Table = list[dict[str, Any]]


@dataclass(frozen=True)
class Chart:
    """A figure of the report.

    Attributes:
        key: names its files and its place on the page.
        title: of the section.
        caption: what the figure shows, and how it was made.
        collect: returns the table of a run; raises `Missing` if the run lacks its data.
        draw: returns the figure of a table.
        wide: whether it needs the page's whole width.
    """

    key: str
    title: str
    caption: str
    collect: Callable[[StudyRun], Table]
    draw: Callable[[Table], Figure]
    wide: bool = False


def unique(table: Table, key: str) -> list[Any]:
    """Return the values of a column, each once, in order."""
    return list(dict.fromkeys(row[key] for row in table))


def draw_band(axis: Any, x: Sequence[float], rows: Table, value: str, *, alpha: float, **style: Any) -> None:
    """Draw a line through the column `value` with a band between the columns "low" and "high"."""
    axis.plot(x, [row[value] for row in rows], **style)
    low, high = [row["low"] for row in rows], [row["high"] for row in rows]
    axis.fill_between(x, low, high, color=style["color"], alpha=alpha, lw=0)
