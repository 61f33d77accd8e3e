"""Utilities against the retriever's rank."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from fastreader.core.drawing import COLOURS, INK, MARKERS, new_figure
from fastreader.report.plots import Chart, Table
from fastreader.report.study_data import Missing, StudyRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def collect(run: StudyRun) -> Table:
    """A row a rank and kind of passage: mean utility in nats."""
    values: dict[tuple[str, int, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for condition, row in run.traces("utilities"):
        passages = run.questions[row["question_id"]].passages
        for rank, utility in enumerate(row["trace"]["utilities"]["utility"]):
            values[condition.label, rank + 1, "all"][row["question_id"]].append(utility)
            if passages[rank].is_gold is not None:
                kind = "gold" if passages[rank].is_gold else "not gold"
                values[condition.label, rank + 1, kind][row["question_id"]].append(utility)
    if not values:
        raise Missing("no method of the run gives utilities; MoI does")
    rows = []
    for (label, rank, kind), own in sorted(values.items(), key=lambda item: (item[0][0], item[0][2], item[0][1])):
        interval = run.interval(own)
        rows.append(
            {
                "method": label,
                "passages": kind,
                "rank": rank,
                "count": len(own),
                "utility": interval.estimate,
                "low": interval.low,
                "high": interval.high,
            }
        )
    return rows


def draw(table: Table) -> Figure:
    """A panel a method, a line a kind of passage."""
    labels = list(dict.fromkeys(row["method"] for row in table))
    figure = new_figure(max(6.4, 3.4 * len(labels)), 3.2)
    axes = figure.subplots(1, len(labels), squeeze=False, sharey=True)[0]
    for axis, label in zip(axes, labels, strict=True):
        axis.axhline(0, color=INK, linewidth=0.8)
        for index, kind in enumerate(("all", "gold", "not gold")):
            rows = [row for row in table if row["method"] == label and row["passages"] == kind]
            if not rows or (kind == "not gold" and not any(r["passages"] == "gold" for r in table)):
                continue
            ranks = [row["rank"] for row in rows]
            axis.plot(
                ranks, [r["utility"] for r in rows], marker=MARKERS[index], color=COLOURS[index], label=kind, lw=1.5
            )
            low, high = [r["low"] for r in rows], [r["high"] for r in rows]
            axis.fill_between(ranks, low, high, color=COLOURS[index], alpha=0.15, lw=0)
        axis.set(xlabel="retriever's rank", title=label if len(labels) > 1 else "")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(axis="y")
    axes[0].set_ylabel("utility, nats")
    axes[0].legend(title="passages")
    return figure


CHART = Chart(
    "utilities",
    "Utility by retriever's rank",
    "What MoI finds a passage worth to the reader, against where the retriever put it; nats against the mean of the "
    "question's passages. A flat line says that the two have little to do with each other. Gold passages are apart "
    "where the data marks them.",
    collect,
    draw,
)
