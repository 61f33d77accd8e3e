"""Accuracy against the number of passages besides the gold one."""

from __future__ import annotations

from fastreader.noise.layouts import LayoutSpec
from fastreader.noise.plots import accuracy_row, draw_accuracy
from fastreader.report.plots import Chart, Table
from fastreader.report.study_data import Missing, StudyRun


def collect(run: StudyRun) -> Table:
    """A row a layout of gold and others: share of right answers with its interval."""
    rows: Table = []
    missing: list[str] = []
    for condition in run.conditions:
        if not condition.spec.startswith("noise:"):
            continue
        spec = LayoutSpec.parse(condition.spec.partition(":")[2])
        if not (spec.gold or condition.spec == "noise:closed_book"):
            continue
        outcomes = run.outcomes(condition, "contained")
        if not outcomes:
            missing += [row["left_out"] for row in run.of(condition) if row["left_out"]][:1]
            continue
        interval = run.interval(outcomes)
        rows.append(
            {
                **accuracy_row(spec, condition.reader),
                "questions": len(outcomes),
                "left_out": sum(row["left_out"] is not None for row in run.of(condition)),
                "accuracy": interval.estimate,
                "low": interval.low,
                "high": interval.high,
            }
        )
    if not any(row["others"] for row in rows):
        raise Missing(missing[0] if missing else "the run has no noise layouts of a gold passage and others")
    return rows


CHART = Chart(
    "random-passages",
    "Accuracy against the number of other passages",
    "The gold passage and so many others, with the gold one first (far from the question), in the middle (mid) or last "
    "(near). The point at 0 is the gold passage alone. A reply is right when it contains an answer. Questions that "
    "lack a gold passage, or enough others, are not in a point.",
    collect,
    draw_accuracy,
)
