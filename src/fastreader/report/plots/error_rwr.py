"""Relative win ratio of each kind of error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fastreader.core.drawing import new_figure
from fastreader.eor.measures import error_rwr, errors
from fastreader.report.plots import Chart, Table
from fastreader.report.plots.heat import square
from fastreader.report.plots.matrices import ensemble
from fastreader.report.study_data import Missing, StudyRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NAMES = {
    "retriever": "answer not retrieved",
    "hallucination": "answer not from the document",
    "extraction": "wrong answer from the document",
    "luck": "right without the document",
}


def collect(run: StudyRun) -> Table:
    """A row an error and pair: the share of `column`'s errors that `row` avoids."""
    matrix = ensemble(run)
    found = errors(matrix.answers, matrix.correct).filtered()
    if not len(found.correct):
        raise Missing("every question has an answer of more than five words, which the error analysis leaves out")
    rows: Table = []
    for name, ratios in error_rwr(found).items():
        for i, j in np.ndindex(ratios.shape):
            if i != j:
                rows.append(
                    {
                        "error": name,
                        "row": matrix.names[i],
                        "column": matrix.names[j],
                        "rwr": None if np.isnan(ratios[i, j]) else float(ratios[i, j]),
                        "questions": len(found.correct),
                    }
                )
    return rows


def draw(table: Table) -> Figure:
    """A heat map an error."""
    kinds = list(dict.fromkeys(row["error"] for row in table))
    names = len({row["row"] for row in table})
    side = max(3.2, 1.5 + 0.45 * names)
    figure = new_figure(2 * side + 1, 2 * side)
    axes = figure.subplots(2, 2)
    for axis, kind in zip(axes.flat, kinds, strict=True):
        image = square(axis, [row for row in table if row["error"] == kind], "rwr", _NAMES[kind])
    figure.colorbar(image, ax=axes, label="share of the column's errors that the row avoids", shrink=0.6)
    return figure


CHART = Chart(
    "error-rwr",
    "Relative win ratio by error",
    "Of the errors of one kind that the column makes, the share that the row does not. Over questions whose answers "
    "all have at most five words, as in the paper; a cell without a number has no such error.",
    collect,
    draw,
    wide=True,
)
