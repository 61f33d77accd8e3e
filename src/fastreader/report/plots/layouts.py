"""Noise layouts: accuracy by the number of other passages, and attention by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fastreader.noise import plots
from fastreader.noise.attention import AnswerAttention, mean_share
from fastreader.noise.layouts import LayoutSpec
from fastreader.report.plots import Chart, Table
from fastreader.report.study_data import Missing, StudyRun, interval_cells

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def random_passages(run: StudyRun) -> Table:
    """Return a row per layout of gold and others: share of right answers with its interval."""
    rows: Table = []
    missing: list[str] = []
    for condition in run.conditions:
        if not condition.spec.startswith("noise:"):
            continue
        spec = LayoutSpec.parse(condition.spec.partition(":")[2])
        if not (spec.gold or condition.spec == "noise:closed_book"):
            continue
        outcomes = run.outcomes(condition, "contained")
        left_out = [row["left_out"] for row in run.of(condition) if row["left_out"] is not None]
        if not outcomes:
            missing += left_out[:1]
            continue
        rows.append(
            {
                **plots.accuracy_row(spec, condition.reader),
                "questions": len(outcomes),
                "left_out": len(left_out),
                **interval_cells("accuracy", run.interval(outcomes)),
            }
        )
    if not any(row["others"] for row in rows):
        raise Missing(missing[0] if missing else "the run has no noise layouts of a gold passage and others")
    return rows


RANDOM_PASSAGES = Chart(
    "random-passages",
    "Accuracy against the number of other passages",
    "The gold passage with others, where the gold one is first (far from the question), in the middle (mid) or last "
    "(near). The point at 0 is the gold passage by itself. A reply is right if it contains an answer. A point leaves "
    "out questions that lack a gold passage or enough others.",
    random_passages,
    plots.draw_accuracy,
)


def attention(run: StudyRun) -> Table:
    """Return a row per layout, layer and passage: its share of the attention to all passages, mean over questions.

    The share is None in a layer that sees no passage.
    """
    if not run.attention:
        raise Missing("it was not recorded; attention = 20 in [noise] records it for the first 20 questions")
    shares: dict[tuple[str, str], list[AnswerAttention]] = {}
    for row in run.attention:
        if row["attention"] is not None:
            shares.setdefault((row["reader"], row["method"]), []).append(AnswerAttention.from_dict(row["attention"]))
    table: Table = []
    for (reader, layout), found in shares.items():
        kinds = list(found[0].kinds)
        same = [one for one in found if len(one.kinds) == len(kinds)]
        if len(kinds) < 2:
            continue  # one passage has all of it
        mean = mean_share(same)
        for layer, place in np.ndindex(mean.shape):
            table.append(
                {
                    "reader": reader,
                    "method": layout,
                    "questions": len(same),
                    "layer": layer,
                    "place": place + 1,
                    "kind": kinds[place] if all(one.kinds[place] == kinds[place] for one in same) else "passage",
                    "share": None if np.isnan(mean[layer, place]) else float(mean[layer, place]),
                }
            )
    if not table:
        why = next((row["error"] for row in run.attention if row["error"]), "")
        raise Missing("no layout with two or more passages has an answer with attention" + (f" ({why})" if why else ""))
    return table


def draw_attention(table: Table) -> Figure:
    """Draw a heat map per layout, layers upwards."""
    maps = []
    for key in dict.fromkeys((row["reader"], row["method"]) for row in table):
        rows = [row for row in table if (row["reader"], row["method"]) == key]
        layers, places = max(r["layer"] for r in rows) + 1, max(r["place"] for r in rows)
        cells = np.full((layers, places), np.nan)
        for row in rows:
            if row["share"] is not None:
                cells[row["layer"], row["place"] - 1] = row["share"]
        kinds = [next(r["kind"] for r in rows if r["place"] == p) for p in range(1, places + 1)]
        maps.append((f"{key[1]} (n = {rows[0]['questions']})", cells, kinds))
    return plots.draw_attention(maps)


ATTENTION = Chart(
    "attention",
    "Attention of the answer to each passage",
    "Attention of the answer's tokens to each passage's tokens, mean over heads, tokens and questions, as a share of "
    "the attention to all passages of the prompt in a layer. Passages are in reading order; the question follows the "
    "last.",
    attention,
    draw_attention,
    wide=True,
)
