"""Ratios, bounds and weights of an ensemble's retrievers, or of a study's methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastreader.core.drawing import COLOURS, INK, MAP, new_figure
from fastreader.eor import measures
from fastreader.report.plots import Chart, Table, unique
from fastreader.report.plots.answers import Matrix, ensemble_matrix, matrix_of
from fastreader.report.study_data import Missing, StudyRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ERRORS = {
    "retriever": "answer not retrieved",
    "hallucination": "answer not from the document",
    "extraction": "wrong answer from the document",
    "luck": "right without the document",
}


def rwr(run: StudyRun) -> Table:
    """Return a row per pair: the share of the questions missed by `column` that `row` answers."""
    matrix = matrix_of(run)
    return _pairs({"of": matrix.what}, matrix, measures.rwr(matrix.correct), len(matrix.correct))


def error_rwr(run: StudyRun) -> Table:
    """Return a row per kind of error and pair: the share of `column`'s errors that `row` avoids."""
    matrix = ensemble_matrix(run)
    found = measures.errors(matrix.answers, matrix.correct).filtered()
    if not len(found.correct):
        raise Missing("every question has an answer of more than five words, which the error analysis leaves out")
    return [
        row
        for name, ratios in measures.error_rwr(found).items()
        for row in _pairs({"error": name}, matrix, ratios, len(found.correct))
    ]


def _pairs(first: dict[str, str], matrix: Matrix, ratios: npt.NDArray[np.float64], questions: int) -> Table:
    return [
        {
            **first,
            "row": matrix.names[i],
            "column": matrix.names[j],
            "rwr": None if np.isnan(ratios[i, j]) else float(ratios[i, j]),
            "questions": questions,
        }
        for i, j in np.ndindex(ratios.shape)
        if i != j
    ]


def draw_rwr(table: Table) -> Figure:
    """Draw one heat map."""
    names = len({row["row"] for row in table})
    figure = new_figure(max(4.2, 2.2 + 0.5 * names), max(3.4, 1.4 + 0.45 * names))
    axis = figure.subplots()
    figure.colorbar(_heat_map(axis, table), ax=axis, label="relative win ratio")
    axis.set(xlabel="misses", ylabel="answers")
    return figure


def draw_error_rwr(table: Table) -> Figure:
    """Draw a heat map per kind of error."""
    names = len({row["row"] for row in table})
    side = max(3.2, 1.5 + 0.45 * names)
    figure = new_figure(2 * side + 1, 2 * side)
    axes = figure.subplots(2, 2)
    for axis, kind in zip(axes.flat, unique(table, "error"), strict=True):
        image = _heat_map(axis, [row for row in table if row["error"] == kind], _ERRORS[kind])
    figure.colorbar(image, ax=axes, label="share of the column's errors that the row avoids", shrink=0.6)
    return figure


def _heat_map(axis: Any, rows: Table, title: str = "") -> Any:
    """Draw a square heat map of ratios with their numbers and with names on both sides, and return the image."""
    names = unique(rows, "row")
    cells = np.full((len(names), len(names)), np.nan)
    for row in rows:
        if row["rwr"] is not None:
            cells[names.index(row["row"]), names.index(row["column"])] = row["rwr"]
    image = axis.imshow(cells, cmap=MAP, vmin=0.0, vmax=1.0)
    axis.set_xticks(range(len(names)), names, rotation=45, ha="right", rotation_mode="anchor")
    axis.set_yticks(range(len(names)), names)
    axis.set_title(title)
    for i, j in np.ndindex(cells.shape):
        text, colour = "–", INK
        if not np.isnan(cells[i, j]):
            text = f"{cells[i, j]:.2f}".lstrip("0")
            colour = "#000000" if cells[i, j] > 0.55 else "#ffffff"
        axis.text(j, i, text, ha="center", va="center", color=colour, fontsize=8)
    return image


RWR = Chart(
    "rwr",
    "Relative win ratio",
    "Of the questions that the column gets wrong, the share that the row gets right. If it is high in both directions, "
    "two retrievers know different things, and a vote can gain. A run without an ensemble shows its methods.",
    rwr,
    draw_rwr,
)
ERROR_RWR = Chart(
    "error-rwr",
    "Relative win ratio by error",
    "Of the errors of one kind that the column makes, the share that the row does not make. Covers questions whose "
    "answers all have at most five words, as in the paper; a cell without a number has no such error.",
    error_rwr,
    draw_error_rwr,
    wide=True,
)


def mrlr(run: StudyRun) -> Table:
    """Return a row per pair: what `name` loses to `other`, RWR(other, name), whose mean by name is MRLR."""
    matrix = matrix_of(run)
    ratios = measures.rwr(matrix.correct)
    table: Table = [
        {"of": matrix.what, "name": matrix.names[j], "other": matrix.names[i], "lose_ratio": float(ratios[i, j])}
        for j in range(len(matrix.names))
        for i in range(len(matrix.names))
        if i != j and not np.isnan(ratios[i, j])
    ]
    if not table:
        raise Missing(f"none of the {matrix.what} got a question wrong")
    return table


def draw_mrlr(table: Table) -> Figure:
    """Draw a box per name over its lose ratios, the mean as a diamond."""
    names = unique(table, "name")
    figure = new_figure(6.4, 0.9 + 0.36 * len(names))
    axis = figure.subplots()
    axis.boxplot(
        [[row["lose_ratio"] for row in table if row["name"] == name] for name in names],
        orientation="horizontal",
        tick_labels=names,
        showmeans=True,
        boxprops={"color": INK},
        whiskerprops={"color": INK},
        capprops={"color": INK},
        flierprops={"markeredgecolor": INK},
        medianprops={"color": COLOURS[1], "linewidth": 2},
        meanprops={"marker": "D", "markerfacecolor": COLOURS[0], "markeredgecolor": COLOURS[0]},
    )
    axis.invert_yaxis()
    axis.set(xlabel="relative lose ratio against each other one", xlim=(0, 1))
    axis.grid(axis="x")
    return figure


MRLR = Chart(
    "mrlr",
    "Lose ratios",
    "Of the questions that each one gets wrong, the share that another gets right, for every other one; the diamond is "
    "the mean, MRLR, and the line in the box the median. A small value means that little is lost by using only this "
    "one.",
    mrlr,
    draw_mrlr,
)


def upper_bound(run: StudyRun) -> Table:
    """Return a row per pool size: accuracy of the worst, mean and best ensemble with a perfect vote."""
    matrix = matrix_of(run)
    # The measure takes at most 20; a study with more methods shows its first 20.
    return [
        {
            "of": matrix.what,
            "size": size,
            "worst": float(values.min()),
            "mean": float(values.mean()),
            "best": float(values.max()),
            "ensembles": len(values),
        }
        for size, values in measures.upper_bound(matrix.correct[:, :20]).items()
    ]


def draw_upper_bound(table: Table) -> Figure:
    """Draw the mean with a band from worst to best."""
    figure = new_figure(6.4, 3.2)
    axis = figure.subplots()
    sizes = [row["size"] for row in table]
    axis.fill_between(sizes, [r["worst"] for r in table], [r["best"] for r in table], color=COLOURS[0], alpha=0.2, lw=0)
    axis.plot(sizes, [row["mean"] for row in table], "o-", color=COLOURS[0], label="mean ensemble")
    axis.plot(sizes, [row["best"] for row in table], "^--", color=COLOURS[2], label="best ensemble")
    axis.plot(sizes, [row["worst"] for row in table], "v:", color=COLOURS[1], label="worst ensemble")
    axis.set_xticks(sizes)
    axis.set(xlabel=f"{table[0]['of']} in the pool", ylabel="accuracy of a perfect vote", ylim=(0, None))
    axis.legend()
    axis.grid(axis="y")
    return figure


UPPER_BOUND = Chart(
    "upper-bound",
    "Upper bound against pool size",
    "Share of the questions that at least one member of an ensemble gets right, over all ensembles of a size. Voting "
    "can gain at most the distance between one member and many. At most 20 members are shown.",
    upper_bound,
    draw_upper_bound,
)


def weights(run: StudyRun) -> Table:
    """Return a row per retriever of every fitted voter: its weight and its own accuracy."""
    if not run.voters:
        raise Missing("no voter was fitted; a study with eor and fit = true in [eor] does that")
    matrix = ensemble_matrix(run)
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


def draw_weights(table: Table) -> Figure:
    """Draw a row of bubbles per voter, with areas proportional to the weights and a cross for a weight of 0."""
    voters, names = unique(table, "method"), unique(table, "retriever")
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


WEIGHTS = Chart(
    "weights",
    "Learned weights",
    "Weight of each retriever in a voter fitted on this study's questions; a cross marks a retriever that is left out. "
    "The weights are shown on the questions that they were learned from, and no method in the table votes with them.",
    weights,
    draw_weights,
)
