"""Every method's mean with its interval."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastreader.core.drawing import COLOURS, INK, new_figure
from fastreader.report.plots import Chart, Table
from fastreader.report.study_data import Missing, StudyRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def collect(run: StudyRun) -> Table:
    """A row a condition: mean of the study's measure with a bootstrap interval over gold passages."""
    baselines = run.baselines
    rows = []
    for condition in run.conditions:
        outcomes = run.outcomes(condition)
        if not outcomes:
            continue
        interval = run.interval(outcomes)
        rows.append(
            {
                "method": condition.label,
                "questions": len(outcomes),
                "measure": run.study.measure,
                "mean": interval.estimate,
                "low": interval.low,
                "high": interval.high,
                "baseline": condition.label not in baselines,
            }
        )
    if not rows:
        raise Missing("no question has right answers to compare with")
    return rows


def draw(table: Table) -> Figure:
    """Points with bars, the baseline's mean as a line."""
    figure = new_figure(6.4, 0.9 + 0.28 * len(table))
    axis = figure.subplots()
    for place, row in enumerate(table):
        colour = COLOURS[1] if row["baseline"] else COLOURS[0]
        axis.plot([row["low"], row["high"]], [place, place], color=colour, linewidth=2)
        axis.plot(row["mean"], place, "s" if row["baseline"] else "o", color=colour, markersize=6)
    for row in table:
        if row["baseline"]:
            axis.axvline(row["mean"], color=INK, linestyle=":", linewidth=1)
    axis.set_yticks(range(len(table)), [row["method"] for row in table])
    axis.invert_yaxis()
    axis.set_xlabel("mean, with 95% interval")
    axis.set_xlim(left=0)
    axis.grid(axis="x")
    return figure


CHART = Chart(
    "accuracy",
    "Answers by method",
    "Mean over the questions with a 95% bootstrap interval that draws gold passages, not questions, where several "
    "questions share one. The square is what the others are held against. Intervals that overlap do not say that two "
    "methods are alike: the table's paired differences do.",
    collect,
    draw,
)
