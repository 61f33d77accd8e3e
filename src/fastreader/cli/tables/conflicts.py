"""Contradicting passages as a rich table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table

from fastreader.cli.screen import Text

if TYPE_CHECKING:
    from fastreader.passages.conflicts import Conflicts


def conflicts_table(found: Conflicts) -> RenderableType:
    """Each passage with what it states and pulls towards, and its odd score."""
    table = Table(header_style="bold")
    for name in ("passage", "states", "pulls towards", "nats", "odd"):
        table.add_column(name, overflow="fold", justify="right" if name in ("passage", "nats", "odd") else "left")
    for i, (claim, support, odd) in enumerate(zip(found.claims, found.supports, found.odd_scores, strict=True)):
        names = ["" if k is None else found.candidates[k] for k in (claim, support)]
        pull = "" if support is None else f"{found.ratios[i, support]:+.2f}"
        style = "bold" if i == found.odd else ""
        table.add_row(str(i + 1), Text(names[0]), Text(names[1]), pull, f"{odd:+.2f}", style=style)
    verdict = "no passage contradicts the others" if found.odd is None else f"passage {found.odd + 1} is the odd one"
    agreed = "" if found.consensus is None else f"; the consensus is {found.candidates[found.consensus]!r}"
    cost = f"score {found.score:.2f}: {verdict}{agreed}. {found.stats.computed_tokens:,} tokens computed."
    return Group(Text(found.question, style="bold"), table, Text(cost))
