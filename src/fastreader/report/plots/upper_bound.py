"""What a perfect vote would reach."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastreader.core.drawing import COLOURS, new_figure
from fastreader.eor.measures import upper_bound
from fastreader.report.plots import Chart, Table
from fastreader.report.plots.matrices import retrievers_or_methods
from fastreader.report.study_data import StudyRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def collect(run: StudyRun) -> Table:
    """A row a pool size: accuracy of the worst, mean and best ensemble with a perfect vote."""
    matrix = retrievers_or_methods(run)
    # 20 is what the measure takes; a study with more methods shows its first 20.
    return [
        {
            "of": matrix.what,
            "size": size,
            "worst": float(values.min()),
            "mean": float(values.mean()),
            "best": float(values.max()),
            "ensembles": len(values),
        }
        for size, values in upper_bound(matrix.correct[:, :20]).items()
    ]


def draw(table: Table) -> Figure:
    """Mean with a band from worst to best."""
    figure = new_figure(6.4, 3.2)
    axis = figure.subplots()
    sizes = [row["size"] for row in table]
    axis.fill_between(sizes, [r["worst"] for r in table], [r["best"] for r in table], color=COLOURS[0], alpha=0.2, lw=0)
    axis.plot(sizes, [row["mean"] for row in table], "o-", color=COLOURS[0], label="mean ensemble")
    axis.plot(sizes, [row["best"] for row in table], "^--", color=COLOURS[2], label="best ensemble")
    axis.plot(sizes, [row["worst"] for row in table], "v:", color=COLOURS[1], label="worst ensemble")
    axis.set_xticks(sizes)
    axis.set(xlabel=f"{table[0]['of']} in the pool", ylabel="accuracy of a perfect vote", ylim=(0, None))
    axis.legend()
    axis.grid(axis="y")
    return figure


CHART = Chart(
    "upper-bound",
    "Upper bound against pool size",
    "Share of the questions that at least one member of an ensemble gets right, over all ensembles of a size. The "
    "distance between one and many is what voting could win at most. At most 20 are shown.",
    collect,
    draw,
)
