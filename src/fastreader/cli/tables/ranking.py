"""A ranking by relevance as a rich table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table

from fastreader.cli.screen import Text

if TYPE_CHECKING:
    from fastreader.passages.ranking import Reranked


def reranked_table(ranked: Reranked) -> RenderableType:
    """Passages by relevance, with the value it was made of, and what it cost."""
    table = Table(header_style="bold", expand=True)  # so that only the passages are cut
    for name in ("relevance", "value", "rank"):
        table.add_column(name, justify="right", no_wrap=True, min_width=len(name))
    table.add_column("passage", no_wrap=True, overflow="ellipsis", ratio=1)
    for result in ranked:
        text = Text(" ".join(f"{result.passage.title} {result.passage.text}".split()), overflow="ellipsis")
        value = "" if result.value is None else f"{result.value:.3f}"
        style = "dim" if result.note else ""
        table.add_row(f"{result.relevance:.3f}", value, str(result.index + 1), text, style=style)
    cost = f"by {ranked.method}; rank is the retriever's. {ranked.stats.computed_tokens:,} tokens computed."
    parts: list[RenderableType] = [Text(ranked.question, style="bold"), table, Text(cost)]
    notes = [ranked.note, *(f"passage {result.index + 1}: {result.note}" for result in ranked if result.note)]
    parts += [Text(f"Note: {note}.", style="yellow") for note in notes if note]
    return Group(*parts)
