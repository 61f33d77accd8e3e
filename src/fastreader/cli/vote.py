"""fastreader vote."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastreader.cli.options import AdapterOption, Format, spread, standard_input
from fastreader.cli.voting import VoterArguments, check_right, fit_voter, show
from fastreader.core.checks import expect, located, require
from fastreader.data.containers import lines, parse_json

if TYPE_CHECKING:
    from fastreader.eor import Answers


@spread
def vote(
    *,
    file: Annotated[
        Path,
        typer.Argument(
            help="Lines {question, predictions{retriever: text or null}, answers}, as `fastreader eor -o` writes."
        ),
    ],
    voter: VoterArguments,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="The reader that serves the similarity nli:reader.", show_default=False),
    ] = None,
    adapter: AdapterOption = None,
    format: Annotated[Format, typer.Option("--format", "-f", help="table, json or jsonl.")] = Format.table,
) -> None:
    """Let the answers of several retrievers vote, and print a winner for each question.

    Examples:

      fastreader vote answers.jsonl

      fastreader vote train.jsonl --fit --save voter.json

      fastreader vote test.jsonl --voter voter.json -f jsonl
    """
    from fastreader.eor.types import aligned

    voting = voter.check()
    fits = voting.needs_reader == (model is not None)
    require(fits, "--model: required with the similarity nli:reader, and only with it")
    rows = aligned(_read(file))
    voting.check_retrievers(rows[0].retrievers)
    if voter.fit:
        check_right(rows)
    require(model is not None or adapter is None, "--adapter: is merged into a --model")
    reader = None
    if model is not None:
        from fastreader.reader.reader import Reader

        reader = Reader.load(model, adapter=adapter)
    fitted = voting.voter(reader)
    if voter.fit:
        fit_voter(fitted, rows, voting)
    show(list(zip(rows, fitted.vote(rows), strict=True)), format, voter.metric)


def _read(file: Path) -> list[Answers]:
    from fastreader.eor import Answers

    rows = []
    for number, line in lines(standard_input(file)):
        if line.strip():
            with located(f"{file}, line {number}"):
                row: Any = parse_json(line)
                require(isinstance(row, dict), "expected an object")
                rows.append(Answers.from_dict(row))
    expect(bool(rows), str(file), "the answers to at least one question", rows)
    return rows
