"""What a place in the prompt weighs."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from fastreader.core.drawing import COLOURS, INK, MARKERS, new_figure
from fastreader.report.plots import Chart, Table
from fastreader.report.study_data import Missing, StudyRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def collect(run: StudyRun) -> Table:
    """A row a place: the calibration used, or the mean of what each question's own solve found."""
    calibrated: dict[str, dict[str, Any]] = {}
    solved: dict[tuple[str, int], dict[str, list[list[float]]]] = defaultdict(lambda: defaultdict(list))
    for condition, row in run.traces("utilities"):
        if "bias" in row["trace"]:
            calibrated.setdefault(condition.label, row["trace"]["bias"])
        else:
            bias = row["trace"]["utilities"]["bias"]
            solved[condition.label, len(bias)][row["question_id"]].append(bias)
    rows: Table = []
    for label, bias in calibrated.items():
        for place, (value, (low, high)) in enumerate(zip(bias["bias"], bias["intervals"], strict=True), 1):
            rows.append(_row(label, "calibrated", bias["num_questions"], place, value, low, high))
    for (label, length), biases in solved.items():
        for place in range(length):
            interval = run.interval({q: [bias[place] for bias in seeds] for q, seeds in biases.items()})
            name = label if length == max(n for own, n in solved if own == label) else f"{label}, {length} places"
            rows.append(
                _row(name, "per question", len(biases), place + 1, interval.estimate, interval.low, interval.high)
            )
    if not rows:
        raise Missing("no method of the run estimates it; MoI does")
    return rows


def _row(label: str, kind: str, questions: int, place: int, value: float, low: float, high: float) -> dict[str, Any]:
    return {
        "method": label,
        "estimate": kind,
        "questions": questions,
        "place": place,
        "bias": value,
        "low": low,
        "high": high,
    }


def draw(table: Table) -> Figure:
    """A line a method with its band."""
    figure = new_figure(6.4, 3.4)
    axis = figure.subplots()
    if any(row["estimate"] == "calibrated" for row in table):
        axis.axhline(0, color=INK, linewidth=0.8)
    for index, label in enumerate(dict.fromkeys(row["method"] for row in table)):
        rows = [row for row in table if row["method"] == label]
        places = [row["place"] for row in rows]
        colour = COLOURS[index % len(COLOURS)]
        axis.plot(
            places,
            [row["bias"] for row in rows],
            marker=MARKERS[index % len(MARKERS)],
            color=colour,
            label=f"{label} ({rows[0]['estimate']}, {rows[0]['questions']} questions)",
        )
        axis.fill_between(places, [r["low"] for r in rows], [r["high"] for r in rows], color=colour, alpha=0.2, lw=0)
    if solved := [row for row in table if row["estimate"] != "calibrated"]:
        axis.axhline(1 / max(r["place"] for r in solved), color=INK, linestyle=":", linewidth=1, label="no bias")
    axis.set_xticks(np.unique([row["place"] for row in table]))
    axis.set(xlabel="place in reading order", ylabel="position bias")
    axis.legend(loc="best")
    axis.grid(axis="y")
    return figure


CHART = Chart(
    "position-bias",
    "Position bias",
    "How much a passage's place counts for the question's likelihood. A calibrated curve has unit norm and comes from "
    "many questions in one likelihood; without a calibration, the curve is the mean of what each question's own solve "
    "found, which sums to one and is noisy. Bands are 95% bootstrap intervals.",
    collect,
    draw,
)
