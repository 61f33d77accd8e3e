"""Risk against coverage of the methods that state a confidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastreader.core.drawing import COLOURS, MARKERS, new_figure
from fastreader.report.plots import Chart, Table, unique
from fastreader.report.study_data import Missing, StudyRun
from fastreader.statistics.selective import risk_coverage

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def risk_by_coverage(run: StudyRun) -> Table:
    """Return a row for each point of each method's curve; an answer is right if the study's metric is above 0.5."""
    found: dict[str, list[tuple[float, bool]]] = {}
    for condition, row in run.traces("confidence"):
        if (value := row[run.study.metric]) is not None:
            found.setdefault(condition.label, []).append((row["trace"]["confidence"], value > 0.5))
    if not found:
        raise Missing("no method states a confidence (marginal does) for questions with right answers")
    rows: Table = []
    for label, answers in found.items():
        confidences, right = zip(*answers, strict=True)
        curve = risk_coverage(confidences, [float(value) for value in right])
        for threshold, coverage, risk in zip(curve.threshold, curve.coverage, curve.risk, strict=True):
            point = {"confidence": float(threshold), "coverage": float(coverage), "risk": float(risk)}
            rows.append({"method": label, "answers": len(answers), **point, "area": curve.area})
    return rows


def draw_risk(table: Table) -> Figure:
    """Draw a curve for each method."""
    figure = new_figure(5.2, 3.4)
    axis = figure.subplots()
    for i, label in enumerate(unique(table, "method")):
        rows = [row for row in table if row["method"] == label]
        x, y = [row["coverage"] for row in rows], [row["risk"] for row in rows]
        name, colour = f"{label} (area {rows[0]['area']:.3f})", COLOURS[i % len(COLOURS)]
        axis.plot(x, y, label=name, color=colour, marker=MARKERS[i % len(MARKERS)], markersize=3)
    axis.set_xlabel("share of questions answered, the most confident first")
    axis.set_ylabel("share of wrong answers")
    axis.set_xlim(0, 1.02)
    axis.set_ylim(0, 1.02)
    axis.grid()
    axis.legend(fontsize=8)
    return figure


RISK = Chart(
    "risk-coverage",
    "Risk against coverage",
    "The share of wrong answers if only the most confident ones are given; a confidence that knows right from wrong "
    "rises to the right. An answer counts as right if the study's metric is above 0.5.",
    risk_by_coverage,
    draw_risk,
)
