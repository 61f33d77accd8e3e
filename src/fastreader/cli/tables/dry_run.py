"""The costs that a dry run found, as a rich table: a row per method and reader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table

from fastreader.cli.screen import Text

if TYPE_CHECKING:
    from fastreader.study.dry_reader import Speed
    from fastreader.study.dry_run import Bounds, DryCost

_NOTE = (
    "Tokens are of prompts; new tokens come on top. A range goes from empty replies, and rankings that keep the "
    "retriever's order, to the longest replies that are allowed, and rankings at random."
)


def dry_table(costs: Sequence[DryCost], speeds: dict[str, Speed | None]) -> RenderableType:
    """Show what each method would cost, and how long each reader would take at least.

    Args:
        costs: of the methods.
        speeds: of this machine, by reader; None if it is unknown.
    """
    table = Table(header_style="bold", expand=True)
    table.add_column("method", overflow="fold", ratio=1)
    several = len(speeds) > 1
    for name in (*(("reader",) if several else ()), "answers", "prompts", "tokens", "computed", "new, at most"):
        table.add_column(name, justify="left" if name == "reader" else "right", overflow="fold")
    for cost in costs:
        bounds = (cost.prompts, cost.total_tokens, cost.computed_tokens)
        reader = (Text(cost.reader),) if several else ()
        table.add_row(Text(cost.method), *reader, f"{cost.answers:,}", *map(_bounds, bounds), f"{cost.new_tokens[1]:,}")
    lines = [Text(_time(name, speed, costs)) for name, speed in speeds.items()]
    return Group(table, Text(_NOTE), *lines)


def _bounds(bounds: Bounds) -> str:
    low, high = bounds
    return f"{high:,}" if low == high else f"{low:,}-{high:,}"


def _time(name: str, speed: Speed | None, costs: Sequence[DryCost]) -> str:
    if speed is None:
        return f"{name}: time unknown, since no rate of this device was measured without its weights."
    low, high = (speed.seconds(sum(cost.computed_tokens[i] for cost in costs if cost.reader == name)) for i in (0, 1))
    spent = _duration(high) if _duration(low) == _duration(high) else f"{_duration(low)} to {_duration(high)}"
    return (
        f"{name}: this machine's linear layers take {spent} to read the prompts, at the measured {speed.gflops:,.0f} "
        f"GFLOP/s ({speed.products}); attention and new tokens come on top."
    )


def _duration(seconds: float) -> str:
    if seconds < 0.5:
        return "less than 1 s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
