"""Which passage likes which place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fastreader.core.drawing import MAP, new_figure
from fastreader.report.plots import Chart, Table
from fastreader.report.study_data import Missing, StudyRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def collect(run: StudyRun) -> Table:
    """A row a rank and place: the question's log-likelihood there, against the question's mean, over all questions."""
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


def draw(table: Table) -> Figure:
    """A heat map a method."""
    labels = list(dict.fromkeys(row["method"] for row in table))
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


CHART = Chart(
    "passage-position",
    "Passage by place",
    "The question's log-likelihood over all orderings that were scored with the passage of a rank (row) at a place "
    "(column), less the mean of the question's orderings, averaged over questions. Bright cells are places where that "
    "passage helps the reader most; empty ones were not scored.",
    collect,
    draw,
)
