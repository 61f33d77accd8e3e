"""Figures of a value of each passage by the retriever's rank, for gold passages and others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from fastreader.core.drawing import COLOURS, INK, MARKERS, new_figure
from fastreader.report.plots import Chart, Table, draw_band, unique
from fastreader.report.study_data import Missing, StudyRun, interval_cells

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def by_rank(run: StudyRun, name: str, found: Iterable[tuple[str, str, Sequence[float]]]) -> Table:
    """Return a row per rank and kind of passage: the mean over questions with its interval.

    Args:
        run: the run.
        name: of the value's column.
        found: (label, question, a value for each passage in the retriever's order); a question may come several times.
    """
    values: dict[tuple[str, int, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for label, question, own in found:
        passages = run.questions[question].passages
        for rank, value in enumerate(own):
            gold = passages[rank].is_gold
            for kind in ("all",) if gold is None else ("all", "gold" if gold else "not gold"):
                values[label, rank + 1, kind][question].append(value)
    return [
        {"method": label, "passages": kind, "rank": rank, "count": len(own), **interval_cells(name, run.interval(own))}
        for (label, rank, kind), own in sorted(values.items(), key=lambda item: (item[0][0], item[0][2], item[0][1]))
    ]


def draw_by_rank(table: Table, name: str, axis_label: str) -> Figure:
    """Draw a panel per method, a line per kind of passage."""
    labels = unique(table, "method")
    figure = new_figure(max(6.4, 3.4 * len(labels)), 3.2)
    axes = figure.subplots(1, len(labels), squeeze=False, sharey=True)[0]
    for axis, label in zip(axes, labels, strict=True):
        axis.axhline(0, color=INK, linewidth=0.8)
        for index, kind in enumerate(("all", "gold", "not gold")):
            rows = [row for row in table if row["method"] == label and row["passages"] == kind]
            if not rows or (kind == "not gold" and not any(r["passages"] == "gold" for r in table)):
                continue
            style = {"marker": MARKERS[index], "color": COLOURS[index], "label": kind, "lw": 1.5}
            draw_band(axis, [row["rank"] for row in rows], rows, name, alpha=0.15, **style)
        axis.set(xlabel="retriever's rank", title=label if len(labels) > 1 else "")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(axis="y")
    axes[0].set_ylabel(axis_label)
    axes[0].legend(title="passages")
    return figure


def utilities(run: StudyRun) -> Table:
    """Return a row per rank and kind of passage: mean utility in nats."""
    traces = run.traces("utilities")
    found = [(c.label, row["question_id"], row["trace"]["utilities"]["utility"]) for c, row in traces]
    if not found:
        raise Missing("no method of the run gives utilities; MoI does")
    return by_rank(run, "utility", found)


UTILITIES = Chart(
    "utilities",
    "Utility by retriever's rank",
    "MoI's estimate of a passage's worth to the reader, by the retriever's rank, in nats against the mean of the "
    "question's passages. A flat line means that utility hardly depends on rank. Gold passages are shown separately "
    "if the data marks them.",
    utilities,
    lambda table: draw_by_rank(table, "utility", "utility, nats"),
)


def attribution(run: StudyRun) -> Table:
    """Return a row per method, rank and kind of passage: mean Shapley value of the answer in nats."""
    known = run.attribution
    if not known:
        raise Missing("no answer was attributed; attribution = 20 does so for the first 20 questions")
    found = []
    for condition in run.conditions:
        for row in run.of(condition):
            own = known.get((row["question_id"], row["reader"], row["answer"]))
            if own is not None and own["attribution"] is not None:
                found.append((condition.label, row["question_id"], own["attribution"]["shapley"]))
    if not found:
        raise Missing(f"no answer could be attributed ({next(iter(known.values()))['error']})")
    return by_rank(run, "shapley", found)


ATTRIBUTION = Chart(
    "attribution",
    "Attribution by retriever's rank",
    "How much each passage contributes to the method's answer: the Shapley value of its log-probability over subsets "
    "of the question's passages, in nats, whether the method read them or not. The list of questions below shows it "
    "for each answer.",
    attribution,
    lambda table: draw_by_rank(table, "shapley", "Shapley value, nats"),
    wide=True,
)
