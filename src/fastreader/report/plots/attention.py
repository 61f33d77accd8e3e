"""Where the answers' tokens look, by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fastreader.noise.attention import AnswerAttention, mean_share
from fastreader.noise.plots import draw_attention
from fastreader.report.plots import Chart, Table
from fastreader.report.study_data import Missing, StudyRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def collect(run: StudyRun) -> Table:
    """A row a layout, layer and passage: its share of the attention to all passages, mean over questions; None in a
    layer that sees no passage."""
    if not run.attention:
        raise Missing("it was not asked for; attention = 20 in [noise] looks at the first 20 questions")
    shares: dict[tuple[str, str], list[tuple[list[str], AnswerAttention]]] = {}
    for row in run.attention:
        if row["attention"] is not None:
            found = AnswerAttention.from_dict(row["attention"])
            shares.setdefault((row["reader"], row["method"]), []).append((list(found.kinds), found))
    table: Table = []
    for (reader, layout), items in shares.items():
        kinds = items[0][0]
        same = [(own, attention) for own, attention in items if len(own) == len(kinds)]
        if len(kinds) < 2:
            continue  # one passage has all of it
        mean = mean_share([attention for _, attention in same])
        for layer, place in np.ndindex(mean.shape):
            table.append(
                {
                    "reader": reader,
                    "method": layout,
                    "questions": len(same),
                    "layer": layer,
                    "place": place + 1,
                    "kind": kinds[place] if all(own[place] == kinds[place] for own, _ in same) else "passage",
                    "share": None if np.isnan(mean[layer, place]) else float(mean[layer, place]),
                }
            )
    if not table:
        why = next((row["error"] for row in run.attention if row["error"]), "")
        raise Missing("no layout with two passages or more has an answer to look at" + (f" ({why})" if why else ""))
    return table


def draw(table: Table) -> Figure:
    """A heat map a layout, layers upwards."""
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
    return draw_attention(maps)


CHART = Chart(
    "attention",
    "Attention of the answer to each passage",
    "Attention of the answer's tokens to each passage's tokens, mean over heads, tokens and questions, as a share of "
    "what all passages of the prompt get in a layer. Passages stand in reading order, the question follows the last.",
    collect,
    draw,
    wide=True,
)
