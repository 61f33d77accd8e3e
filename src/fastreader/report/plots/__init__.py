"""The report's figures, one file each: `collect` makes a table of a run, `draw` a figure of the table.

A table is a list of rows with the same keys, and is what goes into the CSV file.
"""

from __future__ import annotations

from collections.abc import Callable
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
        caption: what is to be seen, and how it was made.
        collect: the table of a run; raises `Missing` where the run does not hold what it takes.
        draw: the figure of a table.
        wide: whether it needs the page's whole width.
    """

    key: str
    title: str
    caption: str
    collect: Callable[[StudyRun], Table]
    draw: Callable[[Table], Figure]
    wide: bool = False
