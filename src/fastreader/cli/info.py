"""fastreader info."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console

from fastreader.cli.options import Format


def info(
    format: Annotated[Format, typer.Option("--format", "-f", help="table or json.")] = Format.table,
) -> None:
    """Versions, devices, and which implementation serves each operator and why."""
    from fastreader.info import collect

    facts = collect()
    if format is not Format.table:
        typer.echo(json.dumps(facts, indent=2, allow_nan=False))
        return
    from rich.table import Table

    from fastreader.cli.tables.scores import UNLIMITED

    table = Table(show_header=False)
    for section, values in facts.items():
        for name, value in values.items():
            table.add_row(section, name, str(value))
        table.add_section()
    console = Console()
    (console if console.is_terminal else Console(width=UNLIMITED)).print(table)
