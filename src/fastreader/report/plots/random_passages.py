"""Accuracy against the number of passages besides the gold one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastreader.noise.layouts import POSITIONS, LayoutSpec
from fastreader.report.figures import COLOURS, INK, MARKERS, new_figure
from fastreader.report.plots import Chart, Table
from fastreader.report.study_data import Missing, StudyRun
from fastreader.statistics import bootstrap

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
        labels = [run.clusters.get(q, ("question", q)) for q in outcomes]
        interval = bootstrap(list(outcomes.values()), clusters=labels)
        rows.append(
            {
                "layout": spec.name,
                "reader": condition.reader,
                "others": spec.noise,
                "count": spec.count if spec.count >= 0 else None,
                "position": spec.position,
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


def draw(table: Table) -> Figure:
    """A panel a kind and reader, a line a position; gold alone is the point at 0."""
    panels = list(dict.fromkeys((row["others"], row["reader"]) for row in table if row["others"]))
    readers = {row["reader"] for row in table}
    figure = new_figure(max(5.2, 3.6 * len(panels)), 3.4)
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axis, (kind, reader) in zip(axes, panels, strict=True):
        own = [row for row in table if row["reader"] == reader]
        alone = [row for row in own if row["layout"] == "gold"]
        for index, position in enumerate(POSITIONS):
            rows = [r for r in own if r["others"] == kind and r["position"] == position and r["count"] is not None]
            if not rows:
                continue
            rows = sorted([*({**a, "count": 0} for a in alone), *rows], key=lambda r: r["count"])
            counts = [r["count"] for r in rows]
            axis.plot(
                counts,
                [r["accuracy"] for r in rows],
                marker=MARKERS[index],
                color=COLOURS[index],
                linestyle=("-", "--", "-.")[index],
                label=position,
            )
            low, high = [r["low"] for r in rows], [r["high"] for r in rows]
            axis.fill_between(counts, low, high, color=COLOURS[index], alpha=0.15, lw=0)
        for row in own:
            if row["layout"] == "closed_book":
                axis.axhline(row["accuracy"], color=INK, linestyle=":", label="closed book")
        axis.set(xlabel=f"{kind} passages", title=reader if len(readers) > 1 else "")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(axis="y")
    axes[0].set(ylabel="accuracy", ylim=(0, None))
    axes[-1].legend(title="gold passage")
    return figure


CHART = Chart(
    "random-passages",
    "Accuracy against the number of other passages",
    "The gold passage and so many others, with the gold one first (far from the question), in the middle (mid) or last "
    "(near). The point at 0 is the gold passage alone. A reply is right when it contains an answer. Questions that "
    "lack a gold passage, or enough others, are not in a point.",
    collect,
    draw,
)
