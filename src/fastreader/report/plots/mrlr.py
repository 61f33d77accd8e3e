"""Mean relative lose ratio."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fastreader.core.drawing import COLOURS, INK, new_figure
from fastreader.eor.measures import rwr
from fastreader.report.plots import Chart, Table
from fastreader.report.plots.matrices import retrievers_or_methods
from fastreader.report.study_data import Missing, StudyRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def collect(run: StudyRun) -> Table:
    """A row a pair: what `name` loses to `other`, RWR(other, name); its mean by name is MRLR."""
    matrix = retrievers_or_methods(run)
    ratios = rwr(matrix.correct)
    table: Table = [
        {"of": matrix.what, "name": matrix.names[j], "other": matrix.names[i], "lose_ratio": float(ratios[i, j])}
        for j in range(len(matrix.names))
        for i in range(len(matrix.names))
        if i != j and not np.isnan(ratios[i, j])
    ]
    if not table:
        raise Missing(f"none of the {matrix.what} got a question wrong")
    return table


def draw(table: Table) -> Figure:
    """A box a name over its lose ratios, the mean as a diamond."""
    names = list(dict.fromkeys(row["name"] for row in table))
    figure = new_figure(6.4, 0.9 + 0.36 * len(names))
    axis = figure.subplots()
    axis.boxplot(
        [[row["lose_ratio"] for row in table if row["name"] == name] for name in names],
        orientation="horizontal",
        tick_labels=names,
        showmeans=True,
        boxprops={"color": INK},
        whiskerprops={"color": INK},
        capprops={"color": INK},
        flierprops={"markeredgecolor": INK},
        medianprops={"color": COLOURS[1], "linewidth": 2},
        meanprops={"marker": "D", "markerfacecolor": COLOURS[0], "markeredgecolor": COLOURS[0]},
    )
    axis.invert_yaxis()
    axis.set(xlabel="relative lose ratio against each other one", xlim=(0, 1))
    axis.grid(axis="x")
    return figure


CHART = Chart(
    "mrlr",
    "Lose ratios",
    "Of what each one gets wrong, the share that another gets right, for every other one; the diamond is their mean, "
    "MRLR. Small is steady: little is lost by asking this one alone. The line in the box is the median.",
    collect,
    draw,
)
