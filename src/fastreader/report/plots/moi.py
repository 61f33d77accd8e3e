"""MoI's estimates: position bias, and log-likelihoods by passage and place."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from fastreader.core.drawing import COLOURS, INK, MAP, MARKERS, new_figure
from fastreader.report.plots import Chart, Table, draw_band, unique
from fastreader.report.study_data import Missing, StudyRun, interval_cells

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def position_bias(run: StudyRun) -> Table:
    """Return a row per place: the calibration, or the mean of the biases that the questions' own solves found."""
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
        common = {"method": label, "estimate": "calibrated", "questions": bias["num_questions"]}
        for place, (value, (low, high)) in enumerate(zip(bias["bias"], bias["intervals"], strict=True), 1):
            rows.append({**common, "place": place, "bias": value, "low": low, "high": high})
    for (label, length), biases in solved.items():
        name = label if length == max(n for own, n in solved if own == label) else f"{label}, {length} places"
        common = {"method": name, "estimate": "per question", "questions": len(biases)}
        for place in range(length):
            interval = run.interval({q: [bias[place] for bias in seeds] for q, seeds in biases.items()})
            rows.append({**common, "place": place + 1, **interval_cells("bias", interval)})
    if not rows:
        raise Missing("no method of the run estimates it; MoI does")
    return rows


def draw_position_bias(table: Table) -> Figure:
    """Draw a line per method with its band."""
    figure = new_figure(6.4, 3.4)
    axis = figure.subplots()
    if any(row["estimate"] == "calibrated" for row in table):
        axis.axhline(0, color=INK, linewidth=0.8)
    for index, label in enumerate(unique(table, "method")):
        rows = [row for row in table if row["method"] == label]
        draw_band(
            axis,
            [row["place"] for row in rows],
            rows,
            "bias",
            alpha=0.2,
            marker=MARKERS[index % len(MARKERS)],
            color=COLOURS[index % len(COLOURS)],
            label=f"{label} ({rows[0]['estimate']}, {rows[0]['questions']} questions)",
        )
    if solved := [row for row in table if row["estimate"] != "calibrated"]:
        axis.axhline(1 / max(r["place"] for r in solved), color=INK, linestyle=":", linewidth=1, label="no bias")
    axis.set_xticks(np.unique([row["place"] for row in table]))
    axis.set(xlabel="place in reading order", ylabel="position bias")
    axis.legend(loc="best")
    axis.grid(axis="y")
    return figure


POSITION_BIAS = Chart(
    "position-bias",
    "Position bias",
    "Influence of a passage's place on the question's likelihood. A calibrated curve has unit norm and is estimated "
    "from many questions in one likelihood. Without a calibration, the curve is the mean over the solves of single "
    "questions, which sums to one and is noisy. Bands are 95% bootstrap intervals.",
    position_bias,
    draw_position_bias,
)


def passage_position(run: StudyRun) -> Table:
    """Return a row per rank and place: the question's log-likelihood there minus the question's mean, averaged."""
    sums: dict[tuple[str, int, int], list[float]] = {}
    questions: dict[str, set[str]] = {}
    for condition, row in run.traces("observations"):
        observed = row["trace"]["observations"]
        values = np.array(observed["values"], dtype=np.float64)
        values -= values.mean()
        questions.setdefault(condition.label, set()).add(row["question_id"])
        for order, value in zip(observed["permutations"], values.tolist(), strict=True):
            for place, rank in enumerate(order):
                sums.setdefault((condition.label, rank + 1, place + 1), []).append(value)
    if not sums:
        raise Missing("no method of the run scores orderings; MoI does")
    return [
        {
            "method": label,
            "rank": rank,
            "place": place,
            "nats": float(np.mean(values)),
            "orderings": len(values),
            "questions": len(questions[label]),
        }
        for (label, rank, place), values in sorted(sums.items())
    ]


def draw_passage_position(table: Table) -> Figure:
    """Draw a heat map per method."""
    labels = unique(table, "method")
    figure = new_figure(max(5.0, 4.2 * len(labels)), 4.0)
    axes = figure.subplots(1, len(labels), squeeze=False)[0]
    top = max(abs(row["nats"]) for row in table) or 1.0
    for axis, label in zip(axes, labels, strict=True):
        rows = [row for row in table if row["method"] == label]
        ranks, places = max(r["rank"] for r in rows), max(r["place"] for r in rows)
        cells = np.full((ranks, places), np.nan)
        for row in rows:
            cells[row["rank"] - 1, row["place"] - 1] = row["nats"]
        image = axis.imshow(cells, cmap=MAP, vmin=-top, vmax=top, aspect="auto")
        axis.set(xlabel="place in reading order", ylabel="retriever's rank", title=label if len(labels) > 1 else "")
        axis.set_xticks(range(places), range(1, places + 1))
        axis.set_yticks(range(ranks), range(1, ranks + 1))
    figure.colorbar(image, ax=list(axes), label="nats against the question's mean")
    return figure


PASSAGE_POSITION = Chart(
    "passage-position",
    "Passage by place",
    "The question's log-likelihood over all scored orderings that have the passage of a rank (row) at a place "
    "(column), minus the mean of the question's orderings, averaged over questions. Bright cells are places where that "
    "passage helps the reader most; empty cells were not scored.",
    passage_position,
    draw_passage_position,
)
