"""Relative win ratio."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fastreader.core.drawing import new_figure
from fastreader.eor.measures import rwr
from fastreader.report.plots import Chart, Table
from fastreader.report.plots.heat import square
from fastreader.report.plots.matrices import retrievers_or_methods
from fastreader.report.study_data import StudyRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def collect(run: StudyRun) -> Table:
    """A row a pair: the share of the questions that `column` misses and `row` answers."""
    matrix = retrievers_or_methods(run)
    ratios = rwr(matrix.correct)
    return [
        {
            "of": matrix.what,
            "row": matrix.names[i],
            "column": matrix.names[j],
            "rwr": None if np.isnan(ratios[i, j]) else float(ratios[i, j]),
            "questions": len(matrix.correct),
        }
        for i, j in np.ndindex(ratios.shape)
        if i != j
    ]


def draw(table: Table) -> Figure:
    """One heat map."""
    names = len({row["row"] for row in table})
    figure = new_figure(max(4.2, 2.2 + 0.5 * names), max(3.4, 1.4 + 0.45 * names))
    axis = figure.subplots()
    figure.colorbar(square(axis, table, "rwr"), ax=axis, label="relative win ratio")
    axis.set(xlabel="misses", ylabel="answers")
    return figure


CHART = Chart(
    "rwr",
    "Relative win ratio",
    "Of the questions that the column gets wrong, the share that the row gets right. High values in both directions "
    "say that two retrievers know different things, and that a vote has something to win. Where the run has no "
    "ensemble, its methods stand here.",
    collect,
    draw,
)
