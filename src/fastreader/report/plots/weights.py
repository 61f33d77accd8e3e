"""Weights that a voter learned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastreader.core.drawing import COLOURS, new_figure
from fastreader.report.plots import Chart, Table
from fastreader.report.plots.matrices import ensemble
from fastreader.report.study_data import Missing, StudyRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def collect(run: StudyRun) -> Table:
    """A row a retriever of every fitted voter: its weight and its own accuracy."""
    if not run.voters:
        raise Missing("no voter was fitted; a study with eor and fit = true in [eor] does that")
    matrix = ensemble(run)
    accuracy = dict(zip(matrix.names, matrix.correct.mean(axis=0).tolist(), strict=True))
    rows = [
        {
            "method": method,
            "reader": reader,
            "retriever": name,
            "weight": weight,
            "accuracy": accuracy.get(name),
            "questions": found["questions"],
        }
        for reader, methods in run.voters.items()
        for method, found in methods.items()
        if "voter" in found
        for name, weight in zip(
            found["voter"]["fitted"]["retrievers"], found["voter"]["fitted"]["retriever_weights"], strict=True
        )
    ]
    if not rows:
        reasons = [found["error"] for methods in run.voters.values() for found in methods.values()]
        raise Missing(f"no voter could be fitted: {'; '.join(reasons)}")
    return rows


def draw(table: Table) -> Figure:
    """A row of bubbles a voter, as large as the weights; a cross where the weight is 0."""
    voters = list(dict.fromkeys(row["method"] for row in table))
    names = list(dict.fromkeys(row["retriever"] for row in table))
    figure = new_figure(max(6.4, 1.6 + 0.75 * len(names)), 1.8 + 0.6 * len(voters))
    axis = figure.subplots()
    top = max(row["weight"] for row in table) or 1.0
    for row in table:
        x, y = names.index(row["retriever"]), voters.index(row["method"])
        if row["weight"] > 0:
            axis.scatter(x, y, s=700 * row["weight"] / top, color=COLOURS[0], alpha=0.7, linewidths=0)
            axis.annotate(f"{row['weight']:.2f}", (x, y), (0, 20), textcoords="offset points", ha="center", fontsize=8)
        else:
            axis.scatter(x, y, marker="x", s=30, color=COLOURS[1])
    labels = [
        name if (a := next(r["accuracy"] for r in table if r["retriever"] == name)) is None else f"{name}\n{a:.2f}"
        for name in names
    ]
    axis.set_xticks(range(len(names)), labels)
    axis.set_yticks(range(len(voters)), voters)
    axis.set(xlim=(-0.7, len(names) - 0.3), ylim=(len(voters) - 0.2, -0.9), xlabel="retriever, its own accuracy below")
    return figure


CHART = Chart(
    "weights",
    "Learned weights",
    "Weight of each retriever in a voter fitted on this study's questions; a cross is a retriever left out. They were "
    "learned and are shown on the same questions, and no method in the table votes with them.",
    collect,
    draw,
)
