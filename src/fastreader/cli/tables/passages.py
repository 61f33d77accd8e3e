"""Passages as rich tables: rankings, contradictions, contributions, and the position bias of a reader."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table

from fastreader.cli.screen import Text

if TYPE_CHECKING:
    from fastreader.data import Passage
    from fastreader.moi import PositionBias, Ranked
    from fastreader.passages.attribution import Attribution
    from fastreader.passages.conflicts import Conflicts
    from fastreader.passages.ranking import Reranked


def ranked_table(ranked: Ranked) -> RenderableType:
    """Passages in reading order with utility, interval and P(best), and what it cost."""
    table = Table(header_style="bold", expand=True)  # so that only the passages are cut
    for name in ("place", "rank", "utility", "interval", "P(best)", "score"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("passage", no_wrap=True, overflow="ellipsis", ratio=1)
    for place, p in enumerate(ranked, 1):
        text = _shown(p.passage)
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


def _shown(passage: Passage) -> Text:
    """Return a passage on one line, its title apart from its text."""
    title = " ".join(passage.title.split())
    text = Text(f"{title}: " if title else "", style="bold", overflow="ellipsis")
    return text.append(" ".join(passage.text.split()), style="not bold")


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


def conflicts_table(found: Conflicts) -> RenderableType:
    """Each passage with what it states and pulls towards, and its odd score."""
    table = Table(header_style="bold")
    for name in ("passage", "states", "pulls towards", "nats", "odd"):
        table.add_column(name, overflow="fold", justify="right" if name in ("passage", "nats", "odd") else "left")
    for i, (claim, support, odd) in enumerate(zip(found.claims, found.supports, found.odd_scores, strict=True)):
        names = ["" if k is None else found.candidates[k] for k in (claim, support)]
        if claim is None:
            names[0] = ", ".join(f"not {found.candidates[k]}" for k in np.flatnonzero(found.denied[i]))
        pull = "" if support is None else f"{found.ratios[i, support]:+.2f}"
        style = "bold" if i == found.odd else ""
        table.add_row(str(i + 1), Text(names[0]), Text(names[1]), pull, f"{odd:.2f}", style=style)
    verdict = "no passage contradicts the others" if found.odd is None else f"passage {found.odd + 1} is the odd one"
    agreed = "" if found.consensus is None else f"; the consensus is {found.candidates[found.consensus]!r}"
    cost = (
        f"probability of a contradiction {found.score:.2f}: {verdict}{agreed}. "
        f"{found.stats.computed_tokens:,} tokens computed."
    )
    note = [Text(f"Note: {found.note}.", style="yellow")] if found.note else []
    return Group(Text(found.question, style="bold"), table, Text(cost), *note)


def attribution_table(found: Attribution) -> RenderableType:
    """Each passage by what it contributes to the answer, in nats, and what it cost."""
    table = Table(header_style="bold", expand=True)  # so that only the passages are cut
    for name in ("passage", "Shapley", "alone", "left out", "surrogate"):
        table.add_column(name, justify="right", no_wrap=True, min_width=len(name))
    table.add_column("text", no_wrap=True, overflow="ellipsis", ratio=1)
    for i in found.order:
        error = "" if found.exact else f" ± {found.shapley_error[i]:.2f}"
        values = [f"{values[i]:+.2f}" for values in (found.alone, found.left_out, found.surrogate)]
        table.add_row(str(i + 1), f"{found.shapley[i]:+.2f}{error}", *values, _shown(found.passages[i]))
    whole = found.logprob - found.closed_book_logprob
    cost = (
        f"answer: {found.answer}; all passages together add {whole:+.2f} nats. {found.subsets} subsets, "
        f"{found.stats.computed_tokens:,} tokens computed."
    )
    note = [Text(f"Note: {found.note}.", style="yellow")] if found.note else []
    return Group(Text(found.question, style="bold"), table, Text(cost), *note)


def reranked_table(ranked: Reranked) -> RenderableType:
    """Passages by relevance, with the value it was made of, and what it cost."""
    table = Table(header_style="bold", expand=True)  # so that only the passages are cut
    for name in ("relevance", "value", "rank"):
        table.add_column(name, justify="right", no_wrap=True, min_width=len(name))
    table.add_column("passage", no_wrap=True, overflow="ellipsis", ratio=1)
    for result in ranked:
        text = _shown(result.passage)
        value = "" if result.value is None else f"{result.value:.3f}"
        style = "dim" if result.note else ""
        table.add_row(f"{result.relevance:.3f}", value, str(result.index + 1), text, style=style)
    own = ranked.method in ("query_likelihood", "moi")
    scale = "relevance is the sigmoid of value, in nats" if own else "relevance is by place, from 1 to 1/n"
    cost = f"by {ranked.method}: {scale}; rank is the retriever's. {ranked.stats.computed_tokens:,} tokens computed."
    parts: list[RenderableType] = [Text(ranked.question, style="bold"), table, Text(cost)]
    notes = [ranked.note, *(f"passage {result.index + 1}: {result.note}" for result in ranked if result.note)]
    parts += [Text(f"Note: {note}.", style="yellow") for note in notes if note]
    return Group(*parts)
