"""MoI's results as rich tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table

from fastreader.cli.screen import Text

if TYPE_CHECKING:
    from fastreader.moi import PositionBias, Ranked


def ranked_table(ranked: Ranked) -> RenderableType:
    """Passages in reading order with utility, interval and P(best), and what it cost."""
    table = Table(header_style="bold", expand=True)  # so that only the passages are cut
    for name in ("place", "rank", "utility", "interval", "P(best)", "score"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("passage", no_wrap=True, overflow="ellipsis", ratio=1)
    for place, p in enumerate(ranked, 1):
        text = Text(" ".join(f"{p.passage.title} {p.passage.text}".split()), overflow="ellipsis")
        if p.utility is None:
            table.add_row(str(place), str(p.index + 1), "", "", "", "", text, style="dim")
            continue
        interval = "" if p.interval is None else f"{p.interval[0]:.2f} .. {p.interval[1]:.2f}"
        best = "" if p.p_best is None else f"{p.p_best:.2f}"
        table.add_row(str(place), str(p.index + 1), f"{p.utility:.2f}", interval, best, f"{p.relevance:.3f}", text)
    cost = ranked.cost
    parts: list[RenderableType] = [Text(ranked.question, style="bold"), table]
    parts.append(
        Text(
            f"{ranked.order} order; bias: {ranked.bias_source}. Utilities in nats; rank is the retriever's. "
            f"{cost.computed_tokens:,} tokens computed"
            + (f", {cost.share:.0%} of 3N whole orderings." if cost.full else ".")
        )
    )
    if ranked.note:
        parts.append(Text(f"Caution: {ranked.note}.", style="yellow"))
    return Group(*parts)


def bias_table(bias: PositionBias) -> RenderableType:
    """Show a calibration: the bias by place with its interval, and how it was measured."""
    table = Table(header_style="bold")
    for name in ("place", "bias", "interval"):
        table.add_column(name, justify="right", no_wrap=True)
    widest = float(np.abs(bias.bias).max())
    table.add_column("")
    for place, (value, (low, high)) in enumerate(zip(bias.bias, bias.intervals, strict=True), 1):
        bar = Text(("+" if value >= 0 else "-") * round(20 * abs(float(value)) / widest))
        table.add_row(str(place), f"{value:.3f}", f"{low:.3f} .. {high:.3f}", bar)
    parts: list[RenderableType] = [
        Text(f"{bias.reader.get('name', 'unknown reader')}, N = {bias.num_passages}, {bias.kind} scores", style="bold"),
        table,
        Text(
            f"{bias.num_questions} questions, {bias.num_orderings} orderings; held-out R^2 {bias.r2:.3f}; "
            f"sign by {bias.sign}; beta {bias.beta:.2f}, tau {bias.tau:.2f}, sigma {bias.sigma:.2f} nats."
        ),
    ]
    if bias.reason:
        parts.append(Text(f"Caution: {bias.reason}.", style="yellow"))
    return Group(*parts)
