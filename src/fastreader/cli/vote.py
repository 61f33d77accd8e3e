"""fastreader vote."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fastreader.cli.options import Format
from fastreader.cli.votes import show
from fastreader.cli.voting import (
    FitOption,
    MeasureOption,
    PoolingOption,
    SaveOption,
    SimilarityOption,
    SupportOption,
    WeightsOption,
    check_right,
    check_voting,
    fit_voter,
)
from fastreader.data.read import lines, parse_json
from fastreader.errors import InputError

if TYPE_CHECKING:
    from fastreader.core.protocol import ReaderProtocol
    from fastreader.eor import Answers


def vote(
    file: Annotated[
        Path,
        typer.Argument(
            help="Lines {question, predictions{retriever: text or null}, answers}, as `fastreader eor -o` writes."
        ),
    ],
    similarity: SimilarityOption = None,
    pooling: PoolingOption = "mean",
    weights: WeightsOption = None,
    fit: FitOption = False,
    measure: MeasureOption = "em",
    save: SaveOption = None,
    min_support: SupportOption = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="The reader that nli:reader asks.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the starts that --fit draws.")] = 0,
    format: Annotated[Format, typer.Option("--format", "-f", help="table, json or jsonl.")] = Format.table,
) -> None:
    """Let the answers of several retrievers vote: one winner a question.

    Examples:

      fastreader vote answers.jsonl

      fastreader vote train.jsonl --fit --save voter.json

      fastreader vote test.jsonl --weights voter.json -f jsonl
    """
    from fastreader.eor.types import aligned

    voting = check_voting(similarity, pooling, weights, fit, measure, save, min_support, seed)
    if voting.needs_reader != (model is not None):
        raise InputError("--model: goes with the similarity nli:reader, and that with it")
    rows = aligned(_read(file))
    voting.check_retrievers(rows[0].retrievers)
    if fit:
        check_right(rows)
    voter = voting.voter(_reader(model))
    if fit:
        fit_voter(voter, rows, voting)
    show(list(zip(rows, voter.vote(rows), strict=True)), format)


def _reader(model: str | None) -> ReaderProtocol | None:
    if model is None:
        return None
    from fastreader.reader.reader import Reader

    return Reader.load(model)


def _read(file: Path) -> list[Answers]:
    from fastreader.eor import Answers

    rows = []
    for number, line in lines(Path("/dev/stdin") if file == Path("-") else file):
        if line.strip():
            try:
                row = parse_json(line)
                if not isinstance(row, dict):
                    raise InputError("expected an object")
                rows.append(Answers.from_dict(row))
            except InputError as error:
                raise InputError(f"{file}, line {number}: {error}") from None
    if not rows:
        raise InputError(f"{file}: expected the answers to at least one question, got none")
    return rows
