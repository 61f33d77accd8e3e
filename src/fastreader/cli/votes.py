"""Print votes on standard output."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from fastreader.cli.options import Format
from fastreader.cli.screen import Screen, Text

if TYPE_CHECKING:
    from fastreader.eor import Answers, Vote


def show(rows: Sequence[tuple[Answers, Vote]], format: Format) -> None:
    """Print votes in a format."""
    if format is Format.table:
        _table(rows)
        return
    dicts: list[dict[str, Any]] = [
        {"id": answers.id, "question": answers.question, "retrievers": answers.retrievers, **vote.to_dict()}
        for answers, vote in rows
    ]
    if format is Format.json:
        typer.echo(json.dumps(dicts, ensure_ascii=False, allow_nan=False, indent=1))
        return
    for row in dicts:
        typer.echo(json.dumps(row, ensure_ascii=False, allow_nan=False))


def _table(rows: Sequence[tuple[Answers, Vote]]) -> None:
    from rich.table import Table

    from fastreader.cli.tables.scores import UNLIMITED

    table = Table("id", "question", "answer", "retriever", "support")
    for answers, vote in rows:
        support = "" if vote.winner is None else f"{vote.support[vote.winner]:.2f}"
        said = f"none: {vote.abstained}" if vote.answer is None else vote.answer
        cells = (answers.id or "", answers.question, said, vote.retriever or "", support)
        table.add_row(*(Text(cell) for cell in cells))  # brackets are the texts' own
    console = Screen()
    (console if console.is_terminal else Screen(width=UNLIMITED)).print(table)
