"""The table of `fastreader bench`."""

from __future__ import annotations

from rich.table import Table

from fastreader.cli.packing_gain.compare import Comparison


def bench_table(result: Comparison) -> Table:
    """Ways down, what each took across."""
    about = ", ".join(f"{name} {value}" for name, value in result.reader.items())
    table = Table(title=f"{result.sequences} sequences, {result.given:,} tokens given", caption=about)
    table.add_column("way")
    for head in ("seconds", "min .. max", "tokens computed", "times ours", "largest difference (nats)"):
        table.add_column(head, justify="right")
    gains = result.gains
    for way in result.ways:
        table.add_row(
            way.name,
            f"{way.seconds:.2f}",
            f"{way.spread[0]:.2f} .. {way.spread[1]:.2f}",
            f"{way.computed:,}",
            f"{gains.get(way.name, 1.0):.1f}",
            f"{way.error:.3f}" if way.name in gains else "",
        )
    return table
