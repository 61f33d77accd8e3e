"""Mean and interval of every method, correctness by question, and risk against coverage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastreader.core.drawing import COLOURS, INK, MARKERS, new_figure
from fastreader.eor.measures import MEASURES, correctness
from fastreader.eor.types import Answers
from fastreader.report.plots import Chart, Table, unique
from fastreader.report.study_data import Missing, StudyRun, interval_cells
from fastreader.statistics.selective import risk_coverage
from fastreader.study.methods.eor import answers_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Matrix:
    """Correctness of M answers to Q questions.

    Attributes:
        names: M names.
        correct: bool [Q, M].
        what: "retrievers" or "methods".
        answers: of the ensemble; empty for methods.
    """

    names: list[str]
    correct: npt.NDArray[np.bool_]
    what: str
    answers: list[Answers]


def ensemble_matrix(run: StudyRun) -> Matrix:
    """Return the correctness of the retrievers of the first ensemble.

    Raises:
        Missing: if there is no ensemble, no question with right answers, or another metric than of `eor.measures`.
    """
    if run.study.metric not in MEASURES:
        raise Missing(
            f"the answers of retrievers are not measured by {run.study.metric}, only by {', '.join(MEASURES)}"
        )
    for condition in run.conditions:
        rows = [row for row in run.of(condition) if "ensemble" in row["trace"]]
        answers = [answers_of(row["trace"], run.questions[row["question_id"]]) for row in rows]
        answers = [a for a in answers if a.right]
        if answers:
            right = correctness(answers, run.study.metric) > 0.5
            return Matrix(answers[0].retrievers, right, "retrievers", answers)
    raise Missing("the run has no ensemble of retrievers (eor) over questions with right answers")


def matrix_of(run: StudyRun) -> Matrix:
    """Return the matrix of the ensemble, or else of the study's methods over the questions that all of them answered.

    Raises:
        Missing: if there is neither.
    """
    try:
        return ensemble_matrix(run)
    except Missing:
        by_method = {c.label: run.outcomes(c) for c in run.conditions}
        shared: Any = set.intersection(*(set(values) for values in by_method.values())) if by_method else set()
        if len(by_method) < 2 or not shared:
            raise Missing("it takes two methods or retrievers with answers to the same questions") from None
        questions = sorted(shared)
        correct = np.array([[values[q] > 0.5 for values in by_method.values()] for q in questions])
        return Matrix(list(by_method), correct, "methods", [])


def accuracy(run: StudyRun) -> Table:
    """Return a row per condition: mean of the study's metric with a bootstrap interval over gold passages."""
    baselines = run.baselines
    rows: Table = [
        {
            "method": condition.label,
            "questions": len(outcomes),
            "metric": run.study.metric,
            **interval_cells("mean", run.interval(outcomes)),
            "baseline": condition.label not in baselines,
        }
        for condition in run.conditions
        if (outcomes := run.outcomes(condition))
    ]
    if not rows:
        raise Missing("no question has right answers to compare with")
    return rows


def draw_accuracy(table: Table) -> Figure:
    """Draw points with bars, and the baseline's mean as a line."""
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


ACCURACY = Chart(
    "accuracy",
    "Answers by method",
    "Mean over the questions with a 95% bootstrap interval; where several questions share a gold passage, it draws "
    "gold passages instead of questions. The square is the baseline. Overlapping intervals do not show that two "
    "methods are alike; see the paired differences in the table.",
    accuracy,
    draw_accuracy,
)


def risk_by_coverage(run: StudyRun) -> Table:
    """Return a row for each point of each method's curve.

    An answer is right if the study's metric is above 0.5.
    """
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
